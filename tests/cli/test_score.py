"""Tests of cli/score.py: scores of given translations, from files and pipes."""

import math

import pytest
import torch

import polyhead

SOURCES = ["ein hund bellt .", "zwei hunde", "", "hund"]
TARGETS = ["a dog barks .", "two dogs", "dog", ""]


def log_prob(run, source, target):
    """The log probability and the number of tokens of one pair, token by token."""
    t = run.tokenizer
    (source_ids,), (target_ids,) = t.encode([source]), t.encode([target])
    total, prefix = 0.0, [t.bos_id]
    for token in [*target_ids, t.eos_id]:
        with torch.no_grad():
            logits = run.model(torch.tensor([[*source_ids, t.eos_id]]), torch.tensor([prefix]))
        total += float(logits[0, -1].log_softmax(-1)[token])
        prefix.append(token)
    return total, len(target_ids) + 1


@pytest.fixture
def write(tmp_path):
    """A function that writes the lines of a file and returns its path."""

    def write_lines(name, lines):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / name

    return write_lines


def read_scores(out):
    return [float(line.split("\t")[0]) for line in out.splitlines()]


def test_scores_are_log_probabilities(tiny, tmp_path, write, cli):
    run = polyhead.load(tiny)
    command = ["score", tiny, write("a", SOURCES), write("b", TARGETS)]
    out, err = cli(*command, "--read-batch", 3)
    expected = [log_prob(run, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    scores, counts = [p for p, _ in expected], [n for _, n in expected]
    assert [int(line.split("\t")[1]) for line in out.splitlines()] == counts
    assert read_scores(out) == pytest.approx(scores, abs=2e-4)
    assert float(err.split()[1]) == pytest.approx(math.exp(-sum(scores) / sum(counts)), rel=1e-4)
    assert cli(*command, "--output", tmp_path / "scores", "--read-batch", 3) == (
        "",
        f"polyhead: wrote {tmp_path / 'scores'}\n{err}",
    )
    assert (tmp_path / "scores").read_text() == out
    assert "b is an input" in cli.error(*command, "--output", tmp_path / "b")
    int8_scores = read_scores(cli(*command, "--dtype", "int8").out)
    assert int8_scores != read_scores(out) and int8_scores == pytest.approx(scores, rel=0.05)


def test_pairs_are_read_from_pipes_and_files(tiny, write, cli):
    text = "".join(f"{a}\t{b}\n" for a, b in zip(SOURCES, TARGETS, strict=True))
    assert len(cli("score", tiny, stdin=text).out.splitlines()) == 4
    out = cli("score", tiny, write("ab", ["ein\ta", "", "ein\ta"])).out
    (score,) = polyhead.load(tiny).score([""], [""])
    assert out.split("\n")[1] == f"{score.log_prob:.4f}\t{score.tokens}", "of two empty texts"
    for read_batch in (1, 512):
        pairs = write("bad", ["ein\ta", "ein", "a\tb\tc", "ein\ta"])
        bad, err = cli("score", tiny, pairs, "--read-batch", read_batch)
        assert bad.split("\n")[:-1] == [out.split("\n")[0], "", "", out.split("\n")[2]]
        message = "expected source, tab, translation; found {}; its output is blank"
        for number, found in ((2, "no tab"), (3, "3 columns")):
            assert f"polyhead: line {number}: {message.format(found)}\n" in err


def test_too_long_line_is_reported_and_blank(tiny, write, cli):
    sources, targets = ["ein"] * 6, ["a", "a dog", "", "a", "dog " * 90, "dog"]
    a, b = write("a", sources), write("b", targets)
    pairs = write("ab", [f"{x}\t{y}" for x, y in zip(sources, targets, strict=True)])
    run, rows = polyhead.load(tiny), [0, 1, 2, 3, 5]
    texts = [sources[i] for i in rows], [targets[i] for i in rows]
    scores = zip(rows, run.score(*texts), strict=True)
    lines = {i: f"{score.log_prob:.4f}\t{score.tokens}" for i, score in scores}
    count = len(run.tokenizer.encode(["dog " * 90])[0]) + 1
    for arguments in ([a, b], [a, b, "--read-batch", 3], [pairs]):
        out, err = cli("score", tiny, *arguments)
        assert out.split("\n")[:-1] == [lines.get(i, "") for i in range(6)]
        message = f"polyhead: line 5: {count} tokens, the model's maximum is 32; its output is blank\n"
        assert err.startswith(message) and f"perplexity {run.perplexity(*texts):.4f} over " in err
