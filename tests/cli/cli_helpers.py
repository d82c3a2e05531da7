"""The command line, run in this process."""

import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def save_run(
    directory: Path | str, texts: list[str], tokenizer: str = "bpe", *, seed: int | None = 3, **options: Any
) -> Run:
    """Save an untrained run and its tokenizer of some texts; options are those of a config, or of Run."""
    trained = train_tokenizer(texts * 20, Choice(tokenizer), 300)
    generation, recipe = options.pop("generation", GenerationConfig()), options.pop("recipe", None)
    fields = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64} | options
    run = Run(build(ModelConfig(vocab_size=trained.vocab_size, **fields), seed), trained, generation, recipe)
    run.save(directory)
    return run


class Output(NamedTuple):
    """What a command wrote on its two streams."""

    out: str
    err: str


class CommandLine:
    """Runs commands in this process and checks their exit codes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object, stdin: str | bytes | None = None, code: int = 0) -> Output:
        self.capsys.readouterr()
        if stdin is not None:
            content = stdin.encode() if isinstance(stdin, str) else stdin
            self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        actual = main([str(word) for word in words])
        output = Output(*self.capsys.readouterr())
        assert actual == code, output
        return output

    def error(self, *words: object, stdin: str | bytes | None = None, code: int = 2) -> str:
        """The message of a command that must fail with one line and no output."""
        out, err = self(*words, stdin=stdin, code=code)
        assert err.startswith("polyhead: ") and err.count("\n") == 1 and not out, (out, err)
        return err.removeprefix("polyhead: ").removesuffix("\n")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)
