"""Tests of autoconfig/inspect_data.py."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from tests.autoconfig.propose_recipe_helpers import plain as plain
from tests.autoconfig.propose_recipe_helpers import table

from polyhead.autoconfig.inspect_data import inspect_data
from polyhead.autoconfig.propose_recipe import propose_recipe, render_recipe
from polyhead.cli import main
from polyhead.core.errors import UserError

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905

DRAWN = random.Random(1)

SENTENCES = [" ".join(DRAWN.choices(WORDS, k=6)) for _ in range(60)]

LABELS = ["good" if i % 3 else "bad" for i in range(60)]

STORIES = [{"title": f"no {i}", "n": i, "text": f"{s}\n{s}"} for i, s in enumerate(SENTENCES)]


def test_a_csv_without_a_header_is_told(tmp_path):
    rows = "".join(f"{label},{text}\n" for label, text in zip(LABELS, SENTENCES, strict=True))
    (tmp_path / "a.csv").write_text(rows)
    with pytest.raises(
        UserError, match=r"a.csv: the first row of a CSV must name its columns, and 'bad' also occurs below"
    ):
        inspect_data(["a.csv"], {"root": tmp_path})
    (tmp_path / "a.csv").write_text("polarity,phrase\n" + rows)
    assert inspect_data(["a.csv"], {"root": tmp_path}).data["label"] == "polarity"


def test_plain_text_is_a_language_model_or_the_sides_of_a_translation(plain, tmp_path):
    root = {"root": tmp_path}
    assert inspect_data(plain(a_txt=SENTENCES), root).task == "language-model"
    assert inspect_data(plain(a_txt=SENTENCES, b_txt=SENTENCES[1:]), root).task == "language-model"
    found = inspect_data(plain(a_txt=SENTENCES, b_txt=SENTENCES), root)
    assert (found.task, "source_lang" in found.data) == ("translation", False)
    found = inspect_data(plain(train_en=SENTENCES, train_de=SENTENCES), root)
    assert (found.data["source_lang"], found.data["target_lang"]) == ("en", "de")
    with pytest.raises(UserError, match=r"train.en has 60 lines and train.de has 59"):
        inspect_data(plain(train_en=SENTENCES, train_de=SENTENCES[1:]), root)
    with pytest.raises(
        UserError,
        match=r"task classification expects a table \(TSV, CSV, JSONL or Parquet\); a.txt is plain text",
    ):
        inspect_data(["a.txt"], root, "classification")
    with pytest.raises(
        UserError, match=r"task translation expects a source and a target file.*; got 1: a.txt"
    ):
        inspect_data(["a.txt"], root, "translation")
    with pytest.raises(UserError, match=r"got 3: a.txt, b.txt, train.en"):
        inspect_data(["a.txt", "b.txt", "train.en"], root, "translation")
    found = inspect_data(plain(a_md=SENTENCES, b_md=SENTENCES), root)  # "md" is no language here
    assert (found.task, "source_lang" in found.data) == ("translation", False)


def test_files_beside_are_what_it_is_measured_on(plain, tmp_path):
    root = {"root": tmp_path}
    files = plain(train_en=SENTENCES, train_de=SENTENCES)
    assert inspect_data(files, root).data["valid_fraction"] == 0.1
    plain(dev_en=SENTENCES)  # one side alone is none
    assert "valid" not in inspect_data(files, root).data
    plain(dev_de=SENTENCES, test_en=SENTENCES, test_de=SENTENCES)
    data = inspect_data(files, root).data
    assert (data["valid"], data["test"]) == (["dev.en", "dev.de"], ["test.en", "test.de"])
    for file in files:
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress((tmp_path / file).read_bytes()))
    assert inspect_data([f"{file}.gz" for file in files], root).data["valid"] == [
        "dev.en",
        "dev.de",
    ]  # short, not packed
    assert inspect_data(files, root | {"valid_fraction": 0.3}).data.keys() & {"valid", "test"} == set()
    train = table(
        tmp_path, "train.tsv", [{"label": k, "sentence": s} for s, k in zip(SENTENCES, LABELS, strict=True)]
    )
    table(tmp_path, "test.tsv", [{"index": 1, "sentence": s} for s in SENTENCES])  # without labels
    assert inspect_data([train], root).data.keys() & {"valid", "test"} == set()


def test_text_beyond_what_is_read_is_taken_to_be_alike(plain, tmp_path, monkeypatch):
    monkeypatch.setattr("polyhead.autoconfig.inspect_data._MAX_BYTES", 500)
    files = plain(train_en=SENTENCES, train_de=SENTENCES)
    found = inspect_data(files, {"root": str(tmp_path)})
    assert not found.is_complete and found.rows < 60
    assert found.size == sum((tmp_path / file).stat().st_size for file in files)
    assert "pairs" not in render_recipe(propose_recipe(found), found, "x.yaml").splitlines()[0]


def test_one_long_document_is_not_read_to_its_end(plain, tmp_path, monkeypatch):
    monkeypatch.setattr("polyhead.autoconfig.inspect_data._MAX_BYTES", 1 << 17)
    plain(train_txt=SENTENCES * 400)
    with (tmp_path / "train.txt").open("ab") as file:
        file.write(b"\xff" * 10)  # which nobody gets to
    found = inspect_data(["train.txt"], {"root": tmp_path})
    assert not found.is_complete and found.lengths[0] < 1 << 18
    assert found.size == (tmp_path / "train.txt").stat().st_size


def test_answers_that_are_several_are_told(tmp_path, capsys):
    """A text has one label here; which of several is meant nobody asked, and what became of the table was a
    language model in silence.
    """
    flags = [
        {"id": i % 9, "text": s, "toxic": i % 2, "threat": int(i % 3 == 0)} for i, s in enumerate(SENTENCES)
    ]
    tags = [{"text": s, "tags": [LABELS[i]], "vector": [i / 7, s[0]]} for i, s in enumerate(SENTENCES)]
    each = (
        "toxic and threat could each be the label, and a text has one: data.label=toxic trains a "
        "classifier of it."
    )
    several = (
        "tags has several labels per text, and only one is supported: write each into its own column, "
        "yes or no."
    )
    for rows, note in ((flags, each), (tags, several)):
        file = str(tmp_path / table(tmp_path, "a.jsonl", rows))
        found = inspect_data([file], {})
        assert (found.task, found.notes) == ("language-model", [note])
        for way in (
            inspect_data([file], {"text": "text"}),
            inspect_data([file], {}, "language-model"),
            inspect_data([file], {}, "masked-lm"),
        ):
            assert way.notes == []
        assert main(["init", file]) == 0
        assert capsys.readouterr().out.splitlines()[1] == f"# {note}"
        assert main(["init", file, "--output", str(tmp_path / f"{note[:5]}.yaml")]) == 0
        assert capsys.readouterr().err.splitlines()[1] == note
    assert inspect_data([table(tmp_path, "b.jsonl", STORIES)], {"root": tmp_path}).notes == []


def test_two_files_that_are_no_sides_of_translations_are_told_of(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a dog barks .\n" * 40)
    Path("b.txt").write_text("a cat sleeps .\n" * 39)
    note = (
        "read as plain text for one language model: a.txt has 40 lines and b.txt 39 lines; the two sides "
        "of translations must have equally many, at least two"
    )
    assert main(["init", "a.txt", "b.txt"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[1] == f"# {note}"
    assert told.err.startswith(f"polyhead: {note}\npolyhead: exports: Hugging Face, ")
    assert main(["init", "a.txt", "b.txt", "--output", "mine.yaml"]) == 0
    assert capsys.readouterr().err.splitlines()[1] == note
    assert main(["init", "a.txt", "b.txt", "task=language-model"]) == 0
    assert main(["init", "a.txt", "a.txt", "b.txt"]) == 0
    Path("b.txt").write_text("ein hund bellt .\n" * 40)
    assert main(["init", "a.txt", "b.txt"]) == 0
    told_last = capsys.readouterr().err.splitlines()
    assert len(told_last) == 3 and all(line.startswith("polyhead: exports: ") for line in told_last)
