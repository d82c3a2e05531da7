"""Tests of cli/eval_metrics/classes.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.classify_helpers import classifier as classifier
from tests.cli.classify_helpers import shell

import polyhead
from polyhead.config.recipe import Recipe
from polyhead.evaluate.class_metrics import class_measures

TEXTS = ["ein hund bellt .", "zwei hunde bellen", "katze", "ja", "nein", "ein rotes haus"]


def test_eval_measures_labelled_files(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = ["n", "y", "z", "n", "y", "n"]
    lines = [f"{text}\t{label}\n" for text, label in zip(TEXTS, labels, strict=True)]
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(lines) + "lang " * 40 + "\tz\nx\tunknown\n")
    code, out, err = shell(capsys, "eval", classifier, tmp_path / "a.tsv", "--output", tmp_path / "labels")
    assert code == 0, err
    assert "a.tsv: 7 of 8 texts; skipped 1 with an unknown label (first: line 9, 'unknown')" in err
    assert "truncated to 12 tokens: 1 of 7 texts" in err
    run = polyhead.load(classifier)
    found = run.classify([*TEXTS, "lang " * 40])
    given = [run.config.labels.index(one.label) for one in found]
    naive = class_measures(
        given, [run.config.labels.index(label) for label in [*labels, "z"]], run.config.labels
    )
    shown = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()}
    assert {name: shown[name] for name in naive} == pytest.approx(naive, abs=1e-3)
    assert (tmp_path / "labels").read_text().split() == [one.label for one in found]
    code, _, err = shell(capsys, "eval", classifier, tmp_path / "a.tsv", "--beam-size", "3")
    assert code == 2 and "--beam-size: of translations; this run is a classifier" in err
    code, _, err = shell(capsys, "eval", classifier)
    assert code == 2 and "no recipe with data files" in err
    for output, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "a.tsv/labels", f"{tmp_path / 'a.tsv'} is a file, not a directory"),
        (tmp_path / "a.tsv", "is an input and would be overwritten"),
        (classifier / "config.json", "is an input and would be overwritten"),
    ):
        code, out, err = shell(capsys, "eval", classifier, tmp_path / "a.tsv", "--output", output)
        assert (code, out) == (2, "") and message in err and "texts" not in err  # told before the work


def test_eval_is_told_where_text_and_label_are(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rows under other names, by names and by numbers."""
    rows = list(zip(TEXTS, ["n", "y", "z", "n", "y", "n"], strict=True))
    (tmp_path / "usual.tsv").write_text(
        "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    )
    (tmp_path / "other.tsv").write_text(
        "class\tsentence\n" + "".join(f"{label}\t{text}\n" for text, label in rows)
    )
    (tmp_path / "bare.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in rows))

    def table(*arguments: object) -> list[str]:
        code, out, err = shell(capsys, "eval", classifier, *arguments)
        assert code == 0, err
        return out.splitlines()[:-1]  # without the speed

    usual = table(tmp_path / "usual.tsv")
    assert table(tmp_path / "other.tsv", "--text", "sentence", "--label", "class") == usual
    assert table(tmp_path / "bare.tsv", "--text", "1", "--label", "0") == usual
    code, _, err = shell(
        capsys, "eval", classifier, tmp_path / "other.tsv", "--text", "sentense", "--label", "class"
    )
    assert code == 2 and "did you mean 'sentence'" in err


def test_eval_reads_files_named_as_those_of_the_recipe_in_its_format(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "text\tlabel\n" + "".join(f"{text}\ty\n" for text in TEXTS)
    rows = "".join(json.dumps({"text": text, "label": "y"}) + "\n" for text in TEXTS)
    for name, content in {"train": table, "a.tsv": table, "b.jsonl": rows}.items():
        (tmp_path / name).write_text(content)
    run = polyhead.load(classifier)
    data = {"train": [str(tmp_path / "train")], "valid": [str(tmp_path / "train")], "format": "tsv"}
    run.recipe = Recipe.model_validate({"task": "classification", "data": data, "train": {"steps": 1}})
    run.save(tmp_path / "run")
    (loss,) = {
        shell(capsys, "eval", tmp_path / "run", tmp_path / name)[1].splitlines()[0]
        for name in ("train", "a.tsv", "b.jsonl")
    }
    assert loss.startswith("loss")
