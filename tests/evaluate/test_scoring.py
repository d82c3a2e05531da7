"""Likelihoods of texts, against one token after another."""

import io
import math
import sys

import pytest
import torch
from tests.evaluate.scoring_helpers import made

import polyhead
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import open_text

LINES = ["anna and bert", "carl", "", "dora and emil and anna"]


def naive(run, ids):
    """log p of all tokens after the first, each by the whole text before it."""
    with torch.no_grad():
        return sum(
            float(run.model(torch.tensor([ids[:i]]))[0, -1].log_softmax(-1)[ids[i]])
            for i in range(1, len(ids))
        )


@pytest.mark.parametrize(("documents", "end"), [("line", True), ("file", False), (None, False)])
def test_a_text_is_scored_as_one_that_begins(tmp_path, documents, end):
    run = polyhead.load(made(tmp_path, documents))
    t = run.tokenizer
    prefix = t.encode(["\n"])[0] if documents == "file" else [t.eos_id]
    for score, ids in zip(run.score(LINES, batch_tokens=9), t.encode(LINES), strict=True):
        full_ids = [*prefix, *ids, *[t.eos_id] * end]
        assert score.tokens == len(full_ids) - 1
        assert score.log_prob == pytest.approx(naive(run, full_ids), abs=1e-4)
    scores = run.score(LINES)
    mean = sum(s.log_prob for s in scores) / sum(s.tokens for s in scores)
    assert run.perplexity(LINES) == pytest.approx(math.exp(-mean))
    with pytest.raises(UserError, match="perplexity requires at least one token"):
        run.perplexity([])
    with pytest.raises(UserError, match=r"text 2 has \d+ tokens; this model's max_len is 24"):
        run.score(["anna", "zxq" * 30])


def run_main(capsys, *arguments):
    code = main([str(a) for a in arguments])
    return code, *capsys.readouterr()


def test_score_and_eval_commands(tmp_path, capsys, monkeypatch):
    directory = made(tmp_path, "line")
    run = polyhead.load(directory)
    code, out, err = run_main(capsys, "score", directory, tmp_path / "names.txt", "--read-batch", "3")
    expected = run.score(LINES)
    assert code == 0
    assert [float(line.split("\t")[0]) for line in out.splitlines()] == pytest.approx(
        [s.log_prob for s in expected], abs=1e-3
    )
    assert [int(line.split("\t")[1]) for line in out.splitlines()] == [s.tokens for s in expected]
    assert float(err.split()[1]) == pytest.approx(run.perplexity(LINES), rel=1e-3)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"carl\n")))
    assert run_main(capsys, "score", directory)[1] == out.splitlines()[1] + "\n"

    assert run_main(capsys, "score", directory, LINES[1] + " " + LINES[1])[1].endswith(
        f"\t{run.score([LINES[1] + ' ' + LINES[1]])[0].tokens}\n"
    )

    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"carl\n\xff\nanna\n" + b"carl\n" * 8)
    assert (
        run_main(capsys, "eval", directory, bad)[2]
        == "polyhead: bad.txt: skipped 1 lines that are not text or too long\n"
    )
    code, out, _ = run_main(capsys, "eval", directory, tmp_path / "names.txt")
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    result = run.measure_perplexity(open_text([tmp_path / "names.txt"], "line"))
    assert code == 0
    assert float(rows["perplexity"]) == pytest.approx(result.per_token, rel=1e-3)
    assert float(rows["word-ppl"]) == pytest.approx(result.per_word, rel=1e-3)
    assert float(rows["bits"]) == pytest.approx(result.bits_per_character, rel=1e-3)
    code, out, _ = run_main(capsys, "eval", directory, "--split", "valid")
    assert code == 0 and "nats per token" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["eval", "RUN"],
            "this run's recipe has no test files; pass files: polyhead eval RUN FILE, or use --split valid",
        ),
        (
            ["eval", "RUN", "--split", "valid", "--beam-size", "2", "--length-penalty", "1"],
            "--beam-size, --length-penalty: of translations; this run is a language model and is "
            "evaluated on plain text",
        ),
        (
            ["score", "RUN", "FILE", "FILE"],
            "this run is a language model: it scores the lines of one file, without TARGET",
        ),
        (
            ["translate", "RUN", "FILE"],
            "this requires an encoder-decoder, but the run is a language model: use generate, "
            "eval, score, embed or attend",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, capsys, arguments, message):
    directory = made(tmp_path, "file")
    paths = {"RUN": str(directory), "FILE": str(tmp_path / "names.txt")}
    code, out, err = run_main(capsys, *(paths.get(a, a) for a in arguments))
    assert (code, out, err) == (2, "", f"polyhead: {message}\n")
