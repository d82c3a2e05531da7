"""Penalties on the command line are those of the run, and a wrong one is a line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def test_what_is_typed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_tokenizer(["a dog barks .", "User: Assistant: System:"] * 20, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64, "tie_embeddings": "none"}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=3).eval()
    settings = GenerationConfig(max_new_tokens=12, temperature=0.0, chat=Choice("plain"))
    run = Run(model, tokenizer, settings)
    run.save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    said = set()
    for given in ({}, {"frequency_penalty": 2.0}, {"presence_penalty": -2.0}):
        typed = [
            word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        assert main(["generate", "run", "a dog", *typed]) == 0
        out = capsys.readouterr().out
        assert out == f"a dog{run.generate(['a dog'], **given)[0]}\n"
        said.add(out)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog barks\n")))
        assert main(["chat", "run", *typed]) == 0
        wanted = run.chat([{"role": "user", "content": "a dog barks"}], **given)
        assert capsys.readouterr().out == f"{wanted}\n"
    assert len(said) == 3
    for verb in (["generate", "run", "a"], ["chat", "run"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog barks\n")))
        assert main([*verb, "--frequency-penalty", "3"]) != 0
        assert (
            "frequency_penalty: 3.0 is out of range: should be less than or equal to 2"
            in capsys.readouterr().err
        )
