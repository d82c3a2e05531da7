"""Tests of cli/classify.py: texts, files, pipes, pairs and their errors."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.cli.classify_helpers import TEXTS
from tests.cli.classify_helpers import classifier as classifier

import polyhead
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError


def expected_lines(run_dir, *texts):
    """What `classify` prints for texts, by the library."""
    predictions = polyhead.load(run_dir).classify(list(texts))
    return "".join(f"{one.label}\t{one.probabilities[one.label]:.4f}\n" for one in predictions)


def test_text_file_and_pipe_have_the_same_classes(classifier, tmp_path, cli):
    path, out = tmp_path / "texts", tmp_path / "out"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    expected = expected_lines(classifier, *TEXTS)
    assert len(set(expected.split())) > 4, "the texts differ"
    for text in (TEXTS[0], ""):
        assert cli("classify", classifier, text).out == expected_lines(classifier, text)
    for text in ("ein hund bellt " * 40, "hund" * 80):  # longer than the name of a file
        warning = "polyhead: truncated to 12 tokens: 1 of 1 texts\n"
        assert cli("classify", classifier, text) == (expected_lines(classifier, text), warning)
    assert cli("classify", classifier, path, "--read-batch", 4).out == expected
    assert cli("classify", classifier, path, "--output", out, "--read-batch", 4) == (
        "",
        f"polyhead: wrote {out}\n",
    )
    assert out.read_text() == expected
    assert cli("classify", classifier, stdin=path.read_bytes()).out == expected
    lines = cli("classify", classifier, stdin="ein hund\n\n  \n").out.splitlines()
    predictions = polyhead.load(classifier).classify(["ein hund", "", "  "])
    assert [line.split("\t")[0] for line in lines] == [one.label for one in predictions]
    out = cli("classify", classifier, stdin="ja\tnein\nkatze\thund\n").out
    assert out == expected_lines(classifier, ("ja", "nein"), ("katze", "hund"))
    cells = cli("classify", classifier, "ja", "--all").out.strip().split("\t")
    (prediction,) = polyhead.load(classifier).classify(["ja"])
    assert sorted(cells[::2]) == ["n", "y", "z"] and cells[0] == prediction.label
    expected = sorted(prediction.probabilities.values(), reverse=True)
    assert [float(cell) for cell in cells[1::2]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\tc", "line 1: 3 texts, separated by tabs; expected one text or two"),
        ("texts.txt", "no file 'texts.txt'"),
    ],
)
def test_invalid_input_is_refused(classifier, tiny, tmp_path, cli, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    assert f"polyhead: {message}\n" in cli("classify", classifier, text, code=2).err
    name = "ein hund bellt " * 40
    message = f"no file {name!r}; to pass a text use a pipe: echo TEXT | polyhead ..."
    assert cli.error("translate", tiny, "ein hund", "--prefix", name) == message
    assert cli.error("translate", name) == f"{name}: File name too long"


@pytest.mark.parametrize("read_batch", [2, 512])
def test_line_of_other_columns_is_blank_and_named(classifier, tmp_path, cli, read_batch):
    (tmp_path / "mixed").write_text("ja\nnein\nb\tc\nkatze\n")
    out, err = cli("classify", classifier, tmp_path / "mixed", "--read-batch", read_batch)
    first, second, third = expected_lines(classifier, "ja", "nein", "katze").splitlines()
    assert out.splitlines() == [first, second, "", third]
    message = "line 3: 2 texts, separated by tabs; expected 1 as before; its output is blank\n"
    assert err == f"polyhead: {message}"


def test_whitespace_in_labels_becomes_spaces(classifier, tmp_path, cli):
    run_dir, path = shutil.copytree(classifier, tmp_path / "run"), tmp_path / "texts"
    config = json.loads((classifier / "config.json").read_text())
    labels = ["n\no", "y\tes", "z\r\nz"]  # as JSONL may have them
    (run_dir / "config.json").write_text(json.dumps(config | {"labels": labels}))
    path.write_text("\n".join(TEXTS))
    expected = expected_lines(classifier, *TEXTS)
    for label, text in (("n\t", "n o\t"), ("y\t", "y es\t"), ("z\t", "z  z\t")):
        expected = expected.replace(label, text)
    assert cli("classify", run_dir, path).out == expected
    cells = cli("classify", run_dir, "ja", "--all").out.split("\t")
    assert sorted(cells[::2]) == ["n o", "y es", "z  z"]
    rows = [json.dumps({"text": text, "label": labels[i % 3]}) for i, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    cli("eval", run_dir, tmp_path / "a.jsonl", "--output", tmp_path / "labels")
    lines = (tmp_path / "labels").read_text().splitlines()
    assert lines == [line.split("\t")[0] for line in expected.splitlines()]


@pytest.fixture(params=[["review"], ["premise", "hypothesis"]], ids=["texts", "pairs"])
def run(classifier, request, tmp_path):
    """The classifier with a recipe of single texts, or of pairs."""
    run, directory = polyhead.load(classifier), tmp_path / "run"
    data = {"train": ["a.tsv"], "valid": ["a.tsv"], "text": request.param}
    tree = {"task": "classification", "data": data, "train": {"steps": 1}, "out": str(directory)}
    run.recipe = Recipe.model_validate(tree)
    run.save(directory)
    return run


def test_texts_and_pairs_are_not_confused(run, tmp_path, cli):
    """A file with labels in front, for example, is not read as pairs by a run trained on single texts."""
    names, directory = run.recipe.data.text, run.recipe.out
    is_pair = len(names) == 2
    texts, pairs, blank = (tmp_path / name for name in ("texts", "pairs", "blank"))
    texts.write_text("ja\nnein\n")
    pairs.write_text("ja\tein hund\nnein\tkatze\n")
    right, wrong = (pairs, texts) if is_pair else (texts, pairs)
    rows = [tuple(line.split("\t")) if is_pair else line for line in right.read_text().splitlines()]
    assert cli("classify", directory, right).out == expected_lines(directory, *rows)
    count = "1 text; expected 2" if is_pair else "2 texts, separated by tabs; expected 1"
    assert cli.error("classify", directory, wrong) == f"line 1: {count}, as in the run's training"

    (tmp_path / "a.tsv").write_text("y\tein hund\tja\n")
    columns = ["--text", "1"] if is_pair else ["--text", "1", "--text", "2"]
    message = cli.error("eval", directory, tmp_path / "a.tsv", "--label", "0", *columns)
    count = "1 column; expected 2" if is_pair else "2 columns; expected 1"
    options = " ".join(f"--text {name}" for name in names)
    assert message == f"--text names {count}, as in the run's training: {options}"

    predictions = run.classify([("", ""), ("ja", "nein")] if is_pair else ["", "ja"])
    blank.write_text("\nja\tnein\n" if is_pair else "\nja\n")
    lines = cli("classify", directory, blank).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [one.label for one in predictions]
    for value, message in (
        (("a",), "text 2 has 1 parts, expected a pair of texts"),
        (("a", "b", "c"), "text 2 has 3 parts, expected a pair of texts"),
        (None, r"text \d is \w+, expected a string or a pair of strings"),
        (("ein hund", 2), r"text \d is \w+, expected a string or a pair of strings"),
    ):
        with pytest.raises(UserError, match=message):
            run.classify([("a", "b"), value])


@pytest.mark.parametrize(
    ("word", "warning"),
    [
        ("one.tx", "'one.tx' is read as text, since no such file exists; did you mean 'one.txt'?"),
        ("he/she", "'he/she' is read as text, since no such file exists"),
        ("hund", ""),
        ("one.tx ja", ""),
    ],
)
@pytest.mark.parametrize("verb", ["classify", "embed"])
def test_text_that_looks_like_a_file_name_warns(classifier, tmp_path, cli, monkeypatch, verb, word, warning):
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("ja\n")
    out, err = cli(verb, classifier, word)
    assert len(out.splitlines()) == 1 and err == (f"polyhead: {warning}\n" if warning else "")
    for name in ("./one.tx", tmp_path / "one.tx"):
        assert cli.error(verb, classifier, name).endswith("one.txt'?")


def test_wrong_kind_of_run_is_refused_before_reading(tiny, classifier, cli, monkeypatch):
    class Unreadable(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise AssertionError("a line is read")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Unreadable())))
    for verb in ("classify", "embed", "fill-mask"):
        assert "use translate" in cli.error(verb, tiny)
    assert "use classify" in cli.error("score", classifier)
