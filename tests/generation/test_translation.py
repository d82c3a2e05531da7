"""Tests of generation/translation.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PROMPTS = ["你好", "a dog", "🙂"]

MARK = "\ufffd"


def untrained(kind: str, seed: int = 3) -> Run:
    """A run of random weights that says bytes, most of which are no character."""
    tokenizer = train_tokenizer(["a"], Choice("byte"), 261)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}
    model = build(ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, **sizes), seed=seed)
    generation = GenerationConfig(max_new_tokens=7, max_length_ratio=0, max_length_extra=7)
    return Run(model, tokenizer, generation)


def is_cut(run: Run, rows: list[list[int]]) -> bool:
    """Whether the plain text of some row ends inside a character."""
    return any(text.endswith(MARK) for text in run.tokenizer.decode(rows))


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.0, "seed": 1}])
def test_translations_end_with_a_whole_character(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained("encoder-decoder", seed=4)
    found = run.hypotheses(PROMPTS, n_best=3, **changes)
    texts = run.translate(PROMPTS, n_best=3, **changes)
    plain = [run.tokenizer.decode([one.tokens for one in own]) for own in found]
    assert texts == [[text.rstrip(MARK) for text in own] for own in plain]
    assert is_cut(run, [one.tokens for own in found for one in own])
    if changes:
        return
    assert run.translate(PROMPTS) == [own[0] for own in texts]
    run.save(tmp_path / "run")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in PROMPTS))
    assert main(["translate", str(tmp_path / "run"), str(tmp_path / "in.txt")]) == 0
    assert not any(line.endswith(MARK) for line in capsys.readouterr().out.splitlines())
