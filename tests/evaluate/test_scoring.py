import math

import pytest
import torch
from tests.cli.cli_helpers import cli as cli
from tests.evaluate.scoring_helpers import LINES, make_scoring_run
from tests.generation.run_helpers import make_run

import polyhead
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import open_text
from polyhead.evaluate.scoring import score_tokens
from polyhead.tokenizers.languages import with_languages


@torch.no_grad()
def naive_log_prob(run, ids):
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


@torch.no_grad()
def test_score_tokens_equals_single_rows(tmp_path):
    run = polyhead.load(make_scoring_run(tmp_path, "line"))
    model, rows = run.model, [[1, 5, 7, 9], [6], [4, 8]]
    results = score_tokens(model, run.tokenizer.pad_id, rows, top_logprobs=2)
    for ids, result in zip(rows, results, strict=True):
        assert list(result.tokens) == ids[1:] and len(result.top_logprobs) == len(ids) - 1
        for i, (log_prob, top) in enumerate(zip(result.log_probs, result.top_logprobs, strict=True)):
            log_p = model(torch.tensor([ids]))[0, i].log_softmax(-1)
            assert log_prob == pytest.approx(float(log_p[ids[i + 1]]), abs=1e-4)
            assert [p for _, p in top] == pytest.approx(log_p.topk(2).values.tolist(), abs=1e-4)


@torch.no_grad()
def test_pairs_are_scored_with_teacher_forcing():
    run = make_run("encoder-decoder")
    sources, targets = ["a dog", "ein hund bellt .", "dogs"], ["hund", "a dog barks", ""]
    t = run.tokenizer
    template = with_languages(t)
    for source, target, score in zip(sources, targets, run.score(sources, targets), strict=True):
        (x,), (y,) = t.encode([source]), t.encode([target])
        labels = template.labels(y)
        inputs = torch.tensor([template.encoder_input(x)]), torch.tensor([template.decoder_input(y)])
        log_p = run.model(*inputs)[0].log_softmax(-1)
        assert score.tokens == len(labels)
        assert score.log_prob == pytest.approx(float(log_p[range(len(labels)), labels].sum()), abs=1e-4)
    with pytest.raises(UserError, match="3 sources and 1 targets: expected equally many"):
        run.score(sources, ["a"])


def test_score_command(tmp_path, cli):
    run_dir, names = make_scoring_run(tmp_path, "line"), tmp_path / "names.txt"
    run = polyhead.load(run_dir)
    out, err = cli("score", run_dir, names, "--read-batch", 3)
    rows = [line.split("\t") for line in out.splitlines()]
    expected = run.score(LINES)
    assert [float(row[0]) for row in rows] == pytest.approx([s.log_prob for s in expected], abs=1e-3)
    assert [int(row[1]) for row in rows] == [s.tokens for s in expected]
    assert float(err.split()[1]) == pytest.approx(run.perplexity(LINES), rel=1e-3)
    assert cli("score", run_dir, stdin="carl\n").out == out.splitlines()[1] + "\n"
    (score,) = run.score(["carl carl"])
    assert cli("score", run_dir, "carl carl").out.endswith(f"\t{score.tokens}\n")


def test_eval_command(tmp_path, cli):
    run_dir = make_scoring_run(tmp_path, "line")
    names, damaged_file = tmp_path / "names.txt", tmp_path / "bad.txt"
    damaged_file.write_bytes(b"carl\n\xff\nanna\n" + b"carl\n" * 8)
    message = "polyhead: bad.txt: skipped 1 lines that are not text or too long\n"
    assert cli("eval", run_dir, damaged_file).err == message
    rows = {line.split()[0]: line.split()[1] for line in cli("eval", run_dir, names).out.splitlines()}
    expected = polyhead.load(run_dir).measure_perplexity(open_text([names], "line"))
    numbers = [float(rows[name]) for name in ("perplexity", "word-ppl", "bits")]
    expected_numbers = [expected.per_token, expected.per_word, expected.bits_per_character]
    assert numbers == pytest.approx(expected_numbers, rel=1e-3)
    assert "nats per token" in cli("eval", run_dir, "--split", "valid").out
