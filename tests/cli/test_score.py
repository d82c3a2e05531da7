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


def test_a_mistake_behind_the_first_chunk_says_where_it_stands(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("ein\n" * 6)
    (tmp_path / "b").write_text("a\n" * 4 + "dog " * 90 + "\na\n")
    files = [str(tmp_path / name) for name in "ab"]
    assert main(["score", str(tiny), *files, "--read-batch", "3"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("polyhead: line 5 has ")
    assert main(["score", str(tiny), *files]) == 2
    assert capsys.readouterr().err.startswith("polyhead: line 5 has ")
