import gzip
from pathlib import Path

import pytest
from tests.autoconfig.propose_recipe_helpers import LABELS, SENTENCES, write_lines, write_table

from polyhead.autoconfig.inspect_data import inspect_data
from polyhead.autoconfig.propose_recipe import propose_recipe, render_recipe
from polyhead.core.errors import UserError

pytestmark = pytest.mark.usefixtures("workdir")


def test_csv_without_header_is_refused():
    rows = "".join(f"{label},{text}\n" for label, text in zip(LABELS, SENTENCES, strict=True))
    Path("a.csv").write_text(rows)
    message = r"a.csv: the first row of a CSV must name its columns, and 'bad' also occurs below"
    with pytest.raises(UserError, match=message):
        inspect_data(["a.csv"], {})
    Path("a.csv").write_text("polarity,phrase\n" + rows)
    assert inspect_data(["a.csv"], {}).data["label"] == "polarity"


@pytest.mark.parametrize(
    ("files", "languages"),
    [(("a.txt", "b.txt"), None), (("train.en", "train.de"), ("en", "de")), (("a.md", "b.md"), None)],
)
def test_two_parallel_files_are_a_translation(files, languages):
    summary = inspect_data(write_lines(*files), {})
    assert (summary.task, summary.rows) == ("translation", 60)
    assert (summary.data.get("source_lang"), summary.data.get("target_lang")) == (languages or (None, None))
    assert inspect_data([files[0]], {}).task == "language-model"
    for order in (files, files[::-1]):
        write_lines(order[0], lines=[*SENTENCES, ""])
        summary = inspect_data(files, {})
        assert (summary.task, summary.rows) == ("translation", 60), "a blank last line of one side"
        write_lines(order[0])
    write_lines(files[1], lines=SENTENCES[1:])
    if languages is None:
        assert inspect_data(files, {}).task == "language-model", "the lines do not match"


@pytest.mark.parametrize(
    ("files", "task", "message"),
    [
        (["train.en", "train.de"], (), r"train.en has 60 lines and train.de has 59"),
        (["a.txt"], ("classification",), r"task classification expects a table \(TSV, CSV, JSONL or"),
        (["a.txt"], ("translation",), r"task translation expects a source and a target file.*; got 1: a.txt"),
        (
            ["a.txt", "b.txt", "train.en"],
            ("translation",),
            r"a.txt has no counterpart: expected a target file",
        ),
    ],
)
def test_files_that_do_not_match_task_are_refused(files, task, message):
    write_lines("a.txt", "b.txt", "train.en")
    write_lines("train.de", lines=SENTENCES[1:])
    with pytest.raises(UserError, match=message):
        inspect_data(files, {}, *task)


def test_validation_and_test_files_are_found_by_name():
    files = write_lines("train.en", "train.de")
    assert inspect_data(files, {}).data["valid_fraction"] == 0.1
    write_lines("dev.en")
    assert "valid" not in inspect_data(files, {}).data, "one side is missing"
    write_lines("dev.de", "test.en", "test.de")
    data = inspect_data(files, {}).data
    assert (data["valid"], data["test"]) == (["dev.en", "dev.de"], ["test.en", "test.de"])
    for file in files:
        Path(f"{file}.gz").write_bytes(gzip.compress(Path(file).read_bytes()))
    data = inspect_data([f"{file}.gz" for file in files], {}).data
    assert data["valid"] == ["dev.en", "dev.de"], "without compression"
    assert not inspect_data(files, {"valid_fraction": 0.3}).data.keys() & {"valid", "test"}
    rows = [{"label": label, "sentence": s} for s, label in zip(SENTENCES, LABELS, strict=True)]
    write_table("train.tsv", rows)
    write_table("test.tsv", [{"index": 1, "sentence": s} for s in SENTENCES])
    assert not inspect_data(["train.tsv"], {}).data.keys() & {"valid", "test"}, "it has no labels"


def test_large_text_is_extrapolated(monkeypatch):
    monkeypatch.setattr("polyhead.autoconfig.inspect_data._MAX_BYTES", 500)
    files = write_lines("train.en", "train.de")
    summary = inspect_data(files, {})
    assert not summary.is_complete and summary.rows < 60
    assert summary.size == sum(Path(file).stat().st_size for file in files)
    assert "pairs" not in render_recipe(propose_recipe(summary), summary, "x.yaml").splitlines()[0]
    monkeypatch.setattr("polyhead.autoconfig.inspect_data._MAX_BYTES", 1 << 17)
    path = Path(*write_lines("train.txt", lines=SENTENCES * 400))
    with path.open("ab") as file:
        file.write(b"\xff" * 10)  # which would be refused
    summary = inspect_data(["train.txt"], {})
    assert not summary.is_complete and summary.lengths[0] < 1 << 18
    assert summary.size == path.stat().st_size


ALL = [{"id": i % 9, "text": s, "toxic": i % 2, "threat": int(i % 3 == 0)} for i, s in enumerate(SENTENCES)]
TAGS = [{"text": s, "tags": [LABELS[i]], "vector": [i / 7, s[0]]} for i, s in enumerate(SENTENCES)]


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (ALL, "toxic and threat could each be the label, and a text has one: data.label=toxic trains a"),
        (TAGS, "tags has several labels per text: task=multi-label learns them; for one of them, write"),
    ],
    ids=["columns", "lists"],
)
def test_several_labels_per_text_are_noted(rows, note, cli):
    file = write_table("a.jsonl", rows)
    summary = inspect_data([file], {})
    assert summary.task == "language-model"
    assert len(summary.notes) == 1 and summary.notes[0].startswith(note)
    assert inspect_data([file], {"text": "text"}).notes == []
    for task in ("language-model", "masked-lm"):
        assert inspect_data([file], {}, task).notes == []
    assert cli("init", file).out.splitlines()[1].startswith(f"# {note}")
    assert cli("init", file, "--output", "mine.yaml").err.splitlines()[1].startswith(note)


def test_text_files_that_do_not_match_are_noted(cli):
    write_lines("a.txt", lines=["a dog barks ."] * 40)
    write_lines("b.txt", lines=["a cat sleeps ."] * 39)
    note = "read as plain text for one language model: a.txt has 40 lines and b.txt 39 lines; the two sides "
    note += "of translations must have equally many, at least two"
    out, err = cli("init", "a.txt", "b.txt")
    assert out.splitlines()[1] == f"# {note}"
    assert err.startswith(f"polyhead: {note}\npolyhead: exports: Hugging Face, ")
    assert cli("init", "a.txt", "b.txt", "--output", "mine.yaml").err.splitlines()[1] == note
    write_lines("b.txt", lines=["ein hund bellt ."] * 40)
    for words in (["a.txt", "b.txt", "task=language-model"], ["a.txt", "a.txt", "b.txt"], ["a.txt", "b.txt"]):
        (line,) = cli("init", *words).err.splitlines()
        assert line.startswith("polyhead: exports: ")
