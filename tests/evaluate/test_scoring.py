"""Log-probabilities of texts, against one token after another."""

import io
import math
import sys

import pytest
import torch
from tests.evaluate.scoring_helpers import LINES, make_scoring_run

import polyhead
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import open_text


@torch.no_grad()
def naive_log_prob(run, ids):
    """log p of all tokens after the first, each given the whole text before it."""
    logits = [run.model(torch.tensor([ids[:i]]))[0, -1] for i in range(1, len(ids))]
    return sum(float(row.log_softmax(-1)[token]) for row, token in zip(logits, ids[1:], strict=True))


@pytest.mark.parametrize(("documents", "has_end"), [("line", True), ("file", False), (None, False)])
def test_texts_are_scored_after_the_document_prefix(tmp_path, documents, has_end):
    run = polyhead.load(make_scoring_run(tmp_path, documents))
    t = run.tokenizer
    prefix = t.encode(["\n"])[0] if documents == "file" else [t.eos_id]
    for score, ids in zip(run.score(LINES, batch_tokens=9), t.encode(LINES), strict=True):
        ids = [*prefix, *ids, *[t.eos_id] * has_end]
        assert score.tokens == len(ids) - 1
        assert score.log_prob == pytest.approx(naive_log_prob(run, ids), abs=1e-4)
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


def test_score_command(tmp_path, capsys, monkeypatch):
    run_dir, names = make_scoring_run(tmp_path, "line"), tmp_path / "names.txt"
    run = polyhead.load(run_dir)
    code, out, err = run_main(capsys, "score", run_dir, names, "--read-batch", "3")
    rows = [line.split("\t") for line in out.splitlines()]
    expected = run.score(LINES)
    assert code == 0
    assert [float(row[0]) for row in rows] == pytest.approx([s.log_prob for s in expected], abs=1e-3)
    assert [int(row[1]) for row in rows] == [s.tokens for s in expected]
    assert float(err.split()[1]) == pytest.approx(run.perplexity(LINES), rel=1e-3)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"carl\n")))
    assert run_main(capsys, "score", run_dir)[1] == out.splitlines()[1] + "\n"
    (score,) = run.score(["carl carl"])
    assert run_main(capsys, "score", run_dir, "carl carl")[1].endswith(f"\t{score.tokens}\n")


def test_eval_command(tmp_path, capsys):
    run_dir, names, damaged_file = (
        make_scoring_run(tmp_path, "line"),
        tmp_path / "names.txt",
        tmp_path / "bad.txt",
    )
    damaged_file.write_bytes(b"carl\n\xff\nanna\n" + b"carl\n" * 8)
    err = run_main(capsys, "eval", run_dir, damaged_file)[2]
    assert err == "polyhead: bad.txt: skipped 1 lines that are not text or too long\n"
    code, out, _ = run_main(capsys, "eval", run_dir, names)
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    expected = polyhead.load(run_dir).measure_perplexity(open_text([names], "line"))
    assert code == 0
    assert float(rows["perplexity"]) == pytest.approx(expected.per_token, rel=1e-3)
    assert float(rows["word-ppl"]) == pytest.approx(expected.per_word, rel=1e-3)
    assert float(rows["bits"]) == pytest.approx(expected.bits_per_character, rel=1e-3)
    code, out, _ = run_main(capsys, "eval", run_dir, "--split", "valid")
    assert code == 0 and "nats per token" in out
