"""Classes from the shell: a text, a file, a pipe; measures of labelled files."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.cli.classify_helpers import classifier as classifier
from tests.cli.classify_helpers import shell

import polyhead
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.run import Run

TEXTS = ["ein hund bellt .", "zwei hunde bellen", "katze", "ja", "nein", "ein rotes haus"]


def wanted(classifier: Path, *texts: str | tuple[str, str]) -> str:
    found = polyhead.load(classifier).classify(list(texts))  # type: ignore[arg-type]
    return "".join(f"{one.label}\t{one.probabilities[one.label]:.4f}\n" for one in found)


def test_a_text_a_file_and_a_pipe_have_the_same_classes(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    everything = wanted(classifier, *TEXTS)
    assert len(set(everything.split())) > 4  # not all alike
    assert shell(capsys, "classify", classifier, TEXTS[0])[:2] == (0, wanted(classifier, TEXTS[0]))
    assert shell(capsys, "classify", classifier, tmp_path / "texts", "--read-batch", "4")[:2] == (
        0,
        everything,
    )
    assert shell(
        capsys, "classify", classifier, tmp_path / "texts", "--output", tmp_path / "out", "--read-batch", "4"
    ) == (0, "", "")
    assert (tmp_path / "out").read_text() == everything
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "texts").read_bytes())))
    assert shell(capsys, "classify", classifier)[:2] == (0, everything)


def test_pairs_and_all_classes(
    classifier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ja\tnein\nkatze\thund\n")))
    assert shell(capsys, "classify", classifier)[:2] == (
        0,
        wanted(classifier, ("ja", "nein"), ("katze", "hund")),
    )
    code, out, _ = shell(capsys, "classify", classifier, "ja", "--all")
    (found,) = polyhead.load(classifier).classify(["ja"])
    cells = out.strip().split("\t")
    assert code == 0 and sorted(cells[::2]) == ["n", "y", "z"] and cells[0] == found.label
    assert [float(cell) for cell in cells[1::2]] == pytest.approx(
        sorted(found.probabilities.values(), reverse=True), abs=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a\tb\tc"], "line 1: 3 texts, separated by tabs; expected one text or two"),
        (["texts.txt"], "no file 'texts.txt'"),
        (["mixed"], "line 2: 2 texts, separated by tabs; expected 1 as before"),
    ],
)
def test_mistakes_end_with_code_2_and_a_line(
    classifier: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed").write_text("a\nb\tc\n")
    code, _, err = shell(capsys, "classify", classifier, *arguments)
    assert (code, err) == (2, f"polyhead: {message}\n")


def test_a_run_of_another_kind_says_what_it_can_do(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shell(capsys, "classify", tiny, "a b")
    assert (
        code == 2
        and "this requires a classifier, but the run is an encoder-decoder: use translate, eval" in err
    )


def test_a_label_of_several_lines_and_columns_takes_one(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(classifier, tmp_path / "run")
    config = json.loads((classifier / "config.json").read_text())
    labels = ["n\no", "y\tes", "z\r\nz"]  # as a JSONL may have them
    (tmp_path / "run/config.json").write_text(json.dumps(config | {"labels": labels}))
    rows = [json.dumps({"text": text, "label": labels[i % 3]}) for i, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    plain = wanted(classifier, *TEXTS)
    for before, after in (("n\t", "n o\t"), ("y\t", "y es\t"), ("z\t", "z  z\t")):
        plain = plain.replace(before, after)
    assert shell(capsys, "classify", tmp_path / "run", tmp_path / "texts")[:2] == (0, plain)
    out = shell(capsys, "classify", tmp_path / "run", "ja", "--all")[1]
    assert sorted(out.split("\t")[::2]) == ["n o", "y es", "z  z"]
    code, _, err = shell(
        capsys, "eval", tmp_path / "run", tmp_path / "a.jsonl", "--output", tmp_path / "labels"
    )
    assert code == 0, err
    assert (tmp_path / "labels").read_text() == "".join(
        line.split("\t")[0] + "\n" for line in plain.splitlines()
    )


def test_an_empty_text_is_a_text(classifier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (wanted,) = polyhead.load(classifier).classify([""])
    code, out, _ = shell(capsys, "classify", classifier, "")
    assert (code, out) == (0, f"{wanted.label}\t{wanted.probabilities[wanted.label]:.4f}\n")


@pytest.fixture(scope="module", params=[["review"], ["premise", "hypothesis"]], ids=["texts", "pairs"])
def taught(classifier: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same model as a run that says which columns it learned from."""
    run, directory = polyhead.load(classifier), tmp_path_factory.mktemp("runs") / "taught"
    asked = {"train": ["a.tsv"], "valid": ["a.tsv"], "text": request.param}
    run.recipe = Recipe.model_validate(
        {"task": "classification", "data": asked, "train": {"steps": 1}, "out": str(directory)}
    )
    run.save(directory)
    return run


def test_texts_and_pairs_are_not_taken_for_each_other(
    taught: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with the label in front, say, is not read as pairs by a run that learned from single texts."""
    assert taught.recipe is not None
    one, two, directory = (tmp_path / "one", tmp_path / "two", taught.recipe.out)
    one.write_text("ja\nnein\n")
    two.write_text("ja\tein hund\nnein\tkatze\n")
    pairs = len(taught.recipe.data.text) == 2
    right, wrong = (two, one) if pairs else (one, two)
    lines = [tuple(line.split("\t")) if pairs else line for line in right.read_text().splitlines()]
    assert shell(capsys, "classify", directory, right)[:2] == (0, wanted(directory, *lines))  # type: ignore[arg-type]
    came, asked = (1, 2) if pairs else (2, 1)
    texts = "texts, separated by tabs" if came == 2 else "text"
    said = f"line 1: {came} {texts}; expected {asked}, as in the run's training"
    assert shell(capsys, "classify", directory, wrong) == (2, "", f"polyhead: {said}\n")
    (tmp_path / "a.tsv").write_text("y\tein hund\tja\n")
    columns = ["--text", "1"] if pairs else ["--text", "1", "--text", "2"]
    code, _, err = shell(capsys, "eval", directory, tmp_path / "a.tsv", "--label", "0", *columns)
    assert (code, err) == (
        2,
        f"polyhead: --text names {came} column{'s' * (came - 1)}; expected {asked}, as in the run's "
        f"training: {' '.join(f'--text {name}' for name in taught.recipe.data.text)}\n",
    )
    found = taught.classify([("", ""), ("ja", "nein")] if pairs else ["", "ja"])
    (tmp_path / "blank").write_text("\nja\tnein\n" if pairs else "\nja\n")
    code, out, _ = shell(capsys, "classify", directory, tmp_path / "blank")
    assert code == 0 and [line.split("\t")[0] for line in out.splitlines()] == [one.label for one in found]
    for odd in [("a",), ("a", "b", "c")]:
        with pytest.raises(UserError, match=rf"text 1 has {len(odd)} parts, expected a pair of texts"):
            taught.classify([("a", "b"), odd])


@pytest.mark.parametrize("text", ["ein hund bellt " * 40, "hund" * 80])
def test_a_text_may_be_longer_than_the_name_of_a_file(
    classifier: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert shell(capsys, "classify", classifier, text) == (
        0,
        wanted(classifier, text),
        "polyhead: truncated to 12 tokens: 1 of 1 texts\n",
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("one.tx", "'one.tx' is read as text, since no such file exists; did you mean 'one.txt'?"),
        ("he/she", "'he/she' is read as text, since no such file exists"),
        ("hund", ""),
        ("one.tx ja", ""),
    ],
)
@pytest.mark.parametrize("verb", ["classify", "embed"])
def test_a_word_that_is_like_the_name_of_a_file_is_told_to_be_a_text(
    classifier: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    word: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("ja\n")
    code, out, err = shell(capsys, verb, classifier, word)
    assert (code, len(out.splitlines())) == (0, 1)
    assert err == (f"polyhead: {said}\n" if said else "")
    for name in ("./one.tx", f"{tmp_path}/one.tx"):
        code, _, err = shell(capsys, verb, classifier, name)
        assert code == 2 and err.endswith("did you mean 'one.txt'?\n")


def test_a_name_that_no_file_can_have_is_a_mistake(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "ein hund bellt " * 40
    assert shell(capsys, "translate", tiny, long) == (
        2,
        "",
        f"polyhead: no file {long!r}; to pass a text use a pipe: echo TEXT | polyhead ...\n",
    )
    assert shell(capsys, "translate", long) == (2, "", f"polyhead: {long}: File name too long\n")


def test_what_a_run_cannot_do_is_told_before_a_line_comes(
    tiny: Path, classifier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise AssertionError("it waits for a line")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Nobody())))
    for verb, run, able in (
        ("classify", tiny, "use translate"),
        ("embed", tiny, "use translate"),
        ("fill-mask", tiny, "use translate"),
        ("score", classifier, "use classify"),
    ):
        code, out, err = shell(capsys, verb, run)
        assert (code, out) == (2, "") and able in err, verb


@pytest.mark.parametrize("wrong", [[1], ["ein hund", None], [("ein hund", 2)]])
def test_what_is_no_text_is_told_whatever_was_learned_from(wrong: list[object], classifier: Path) -> None:
    run = polyhead.load(classifier)
    run.recipe = Recipe.model_validate(
        {"task": "classification", "data": {"train": "a.tsv", "valid": "b.tsv"}, "train": {"steps": 1}}
    )
    with pytest.raises(UserError, match=r"text \d is \w+, expected a string or a pair of strings"):
        run.classify(wrong)  # type: ignore[arg-type]


def test_a_blank_line_has_a_class_as_it_has_in_python(
    classifier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ein hund\n\n  \n")))
    assert main(["classify", str(classifier)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = polyhead.load(classifier).classify(["ein hund", "", "  "])
    assert [line.split("\t")[0] for line in lines] == [one.label for one in found]
