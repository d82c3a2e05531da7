"""Scores of given translations, from files and pipes."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import pytest
import torch

import polyhead
from polyhead.cli import main

SOURCES = ["ein hund bellt .", "zwei hunde", "", "hund"]
TARGETS = ["a dog barks .", "two dogs", "dog", ""]


def naive(tiny: Path, source: str, target: str) -> tuple[float, int]:
    """log p of one pair alone, a token at a time."""
    run = polyhead.load(tiny)
    t = run.tokenizer
    (source_ids,), (target_ids,) = t.encode([source]), t.encode([target])
    total, given = 0.0, [t.bos_id]
    for token in [*target_ids, t.eos_id]:
        with torch.no_grad():
            logits = run.model(torch.tensor([[*source_ids, t.eos_id]]), torch.tensor([given]))
        total += float(logits[0, -1].log_softmax(-1)[token])
        given.append(token)
    return total, len(target_ids) + 1


def test_scores_are_those_of_one_token_after_another(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "b").write_text("\n".join(TARGETS) + "\n")
    assert main(["score", str(tiny), str(tmp_path / "a"), str(tmp_path / "b"), "--read-batch", "3"]) == 0
    out, err = capsys.readouterr()
    wanted = [naive(tiny, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    for line, (log_prob, tokens) in zip(out.splitlines(), wanted, strict=True):
        assert line.split("\t")[1] == str(tokens)
        assert float(line.split("\t")[0]) == pytest.approx(log_prob, abs=2e-4)
    perplexity = math.exp(-sum(p for p, _ in wanted) / sum(n for _, n in wanted))
    assert float(err.split()[1]) == pytest.approx(perplexity, rel=1e-4)
    typed = ["score", str(tiny), str(tmp_path / "a"), str(tmp_path / "b"), "--output"]
    assert main([*typed, str(tmp_path / "scores"), "--read-batch", "3"]) == 0
    assert capsys.readouterr() == ("", err)
    assert (tmp_path / "scores").read_text() == out
    assert main([*typed[:-1], "--dtype", "int8"]) == 0
    rounded = [float(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines()]
    assert rounded != [float(line.split("\t")[0]) for line in out.splitlines()]
    assert rounded == pytest.approx([log_prob for log_prob, _ in wanted], rel=0.05)
    assert main([*typed, str(tmp_path / "b")]) == 2
    assert "b is an input" in capsys.readouterr().err


def test_pairs_come_through_a_pipe(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{a}\t{b}\n" for a, b in zip(SOURCES, TARGETS, strict=True))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["score", str(tiny)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_what_does_not_match_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("ein\nhund\n")
    (tmp_path / "b").write_text("a\n")
    assert main(["score", str(tiny), str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    message = f"{tmp_path / 'a'} has 2 lines, {tmp_path / 'b'} has 1: they must match line by line"
    assert capsys.readouterr().err == f"polyhead: {message}\n"
    assert main(["score", str(tiny), str(tmp_path / "a")]) == 2
    way = "to score two files: polyhead score RUN SOURCE TARGET"
    said = f"polyhead: line 1: expected source, tab, translation; found no tab; {way}\n"
    assert capsys.readouterr().err == said


def test_a_line_too_long_to_be_scored_is_named_and_left_out(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, targets = ["ein"] * 6, ["a", "a dog", "", "a", "dog " * 90, "dog"]
    (tmp_path / "a").write_text("".join(f"{text}\n" for text in sources))
    (tmp_path / "b").write_text("".join(f"{text}\n" for text in targets))
    (tmp_path / "ab").write_text("".join(f"{a}\t{b}\n" for a, b in zip(sources, targets, strict=True)))
    run, kept = polyhead.load(tiny), [0, 1, 2, 3, 5]
    scores = run.score([sources[i] for i in kept], [targets[i] for i in kept])
    lines = {i: f"{score.log_prob:.4f}\t{score.tokens}" for i, score in zip(kept, scores, strict=True)}
    perplexity = run.perplexity([sources[i] for i in kept], [targets[i] for i in kept])
    for typed in (["a", "b"], ["a", "b", "--read-batch", "3"], ["ab"]):
        files = [str(tmp_path / name) if name[0] in "ab" else name for name in typed]
        assert main(["score", str(tiny), *files]) == 0
        out, err = capsys.readouterr()
        assert out.split("\n")[:-1] == [lines.get(i, "") for i in range(6)]
        count = len(run.tokenizer.encode(["dog " * 90])[0]) + 1
        told = f"polyhead: line 5: {count} tokens, the model's maximum is 32; its output is blank\n"
        assert err.startswith(told) and f"perplexity {perplexity:.4f} over " in err


def test_a_blank_line_is_a_pair_of_empty_texts(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ab").write_text("ein\ta\n\nein\ta\n")
    assert main(["score", str(tiny), str(tmp_path / "ab")]) == 0
    (score,) = polyhead.load(tiny).score([""], [""])
    assert capsys.readouterr().out.split("\n")[1] == f"{score.log_prob:.4f}\t{score.tokens}"
