"""Tests of tokenizers/terminal_escapes.py."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.introspect.attention_map import AttentionMap, attention_text
from polyhead.run.run import Run
from polyhead.tokenizers.terminal_escapes import escape_controls
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.attention_page import heat_map_svg

HOSTILE = "\x1b[2J\x1b]0;title\x07 a\tb\r \x7f \x9b31m c"


def by_hand(text: str) -> str:
    """Python's own categories say what controls."""
    controls = {c for c in text if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    return "".join(f"\\x{ord(c):02x}" if c in controls else c for c in text)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained models of bytes, which say any of them, and a classifier whose labels are no better."""
    tokenizer, where = train_tokenizer(["a dog"], Choice("byte"), 300), tmp_path_factory.mktemp("bytes")
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 256}
    settings = GenerationConfig(chat=Choice("plain"), max_new_tokens=60, max_length_ratio=4.0)
    config = {"encoder-decoder": {}, "decoder": {}, "encoder": {}, "classifier": {"labels": ["\x1bc", "x"]}}
    for name, more in config.items():
        kind = "encoder" if more else name
        torch.manual_seed(1)
        model = build(ModelConfig(kind=kind, **sizes, **more), seed=3)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
        Run(model, tokenizer, settings).save(where / name)
    return where


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["generate", "decoder", HOSTILE], ""),
        (["generate", "decoder", "a", "-n", "3", "--temperature", "2"], ""),
        (["chat", "decoder"], "hello\nagain\n"),
        (["translate", "encoder-decoder", "--n-best", "4", "--beam-size", "4"], f"a dog\n{HOSTILE}\n"),
        (["attention", "encoder-decoder", HOSTILE], ""),
        (["fill-mask", "encoder", "a <mask> b", "--top", "250"], ""),
        (["embed", "encoder", "--like", "a"], f"{HOSTILE}\n"),
        (["classify", "classifier", "--all"], "a\n"),
    ],
)
def test_a_terminal_is_shown_what_would_command_it(runs, monkeypatch, capsys, arguments, typed):
    verb, run, *rest = arguments

    def said(stream: io.TextIOWrapper) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([verb, str(runs / run), *rest]) == 0, capsys.readouterr().err
        return stream.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]

    plain, shown = said(io.TextIOWrapper(io.BytesIO(), newline="")), said(Terminal(io.BytesIO(), newline=""))
    if verb != "attention":  # whose maps are pictures, the same everywhere
        assert by_hand(plain) != plain
        assert shown == by_hand(plain)
    assert by_hand(shown) == shown


def test_controls_are_those_of_unicode() -> None:
    every = "".join(map(chr, range(0x3000)))
    assert escape_controls(every) == by_hand(every)


def test_a_token_that_controls_has_a_width_on_an_axis_and_is_fit_for_xml() -> None:
    attention = AttentionMap(["\x1b", "b"], ["\x07", "long"], [[[[1.0, 0.0], [0.5, 0.5]]]])
    lines = attention_text(attention).splitlines()
    assert lines[3:5] == ["\\x07   ██     1.00 \\x1b", "long   ▒▒ ▒▒  0.50 \\x1b"]
    assert by_hand(heat_map_svg(attention)) == heat_map_svg(attention)
