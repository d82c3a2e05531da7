"""Tests of cli/answer.py; tests/train/tasks/test_question_answering.py has answers of a trained run."""

import json
import shlex
import unicodedata

import pytest
from tests.cli.cli_helpers import save_run

import polyhead as ph
from polyhead.config.model import ANSWER_LABELS, QUESTION_ANSWERING

CONTEXT = "the dog sat on the mat"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with an untrained question answerer, a language model and a context."""
    directory = tmp_path_factory.mktemp("answers")
    options = {"labels": ANSWER_LABELS, "problem_type": QUESTION_ANSWERING, "lm_head": False}
    save_run(directory / "run", [CONTEXT], kind="encoder", **options)
    save_run(directory / "lm", [CONTEXT], kind="decoder")
    (directory / "context.txt").write_text(f"{CONTEXT}\n")
    return directory


@pytest.fixture
def answer(directory, cli):
    """The command, with words for its files."""
    run, context = directory / "run", directory / "context.txt"
    return lambda *words, **options: cli("answer", run, *words, "--context", context, **options)


def test_questions_are_read_as_lines_of_other_verbs(directory, answer, tmp_path):
    questions = ["where ?", unicodedata.normalize("NFD", "wäre ?"), "who ?"]
    (tmp_path / "in.txt").write_text("".join(f"{question}\n" for question in questions))
    expected = ph.load(directory / "run", fast=True).answer_all([(one, CONTEXT) for one in questions])
    out, err = answer(tmp_path / "in.txt", "--read-batch", 2)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["question"], row["answer"], row["start"]) for row in rows] == [
        (question, one.answer, one.start) for question, one in zip(questions, expected, strict=True)
    ]
    assert err.count("line 2 has decomposed characters (NFD)") == 1
    (tmp_path / "out.jsonl").write_text("x")
    answer("where ? " * 60, "--output", tmp_path / "out.jsonl")  # a text that is too long for a path
    assert json.loads((tmp_path / "out.jsonl").read_text())["question"] == "where ? " * 60


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("answer run none.txt --context text", "no file 'none.txt'"),
        ("answer run who --context none.txt", "no file 'none.txt'"),
        ("answer run who --context context.txt --output context.txt", "--output context.txt is an input and"),
        (
            "answer run context.txt --context text --output context.txt",
            "--output context.txt is an input and",
        ),
        ("answer run '\u3000 ' --context text", "question is empty: expected text"),
        ("answer lm none.txt --context none.txt", "this requires a question answerer, but the run is a lang"),
        ("embed lm none.txt", "no file 'none.txt'"),
        ("embed run context.txt", "this requires an encoder, a language model or a classifier, but the run"),
        ("embed lm context.txt --output context.txt", "--output context.txt: expected a name that ends with"),
    ],
)
def test_mistakes_are_refused_before_the_model_is_loaded(command, message, directory, cli, monkeypatch):
    monkeypatch.chdir(directory)
    monkeypatch.setattr("polyhead.run.load.load", None)  # a call is a bug
    assert cli.error(*shlex.split(command)).startswith(message)
    assert (directory / "context.txt").read_text() == f"{CONTEXT}\n"


@pytest.mark.parametrize("read_batch", [1, 2, 32])
def test_blank_questions_have_blank_lines(read_batch, answer):
    lines = ["who ?", "", "where ?", "\u3000\u200b", "who ?"]
    out, err = answer("-", "--read-batch", read_batch, stdin="\n".join(lines) + "\n")
    rows = out.split("\n")
    assert [row and json.loads(row)["question"] for row in rows] == ["who ?", "", "where ?", "", "who ?", ""]
    assert err.splitlines() == [
        f"polyhead: line {n}: question is empty: expected text; its output is blank" for n in (2, 4)
    ]
    only_blank, _ = answer("-", stdin="\n")
    assert only_blank == "\n"
