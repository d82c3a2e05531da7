import io
import sys
import unicodedata

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.introspect.attention_map import AttentionMap, attention_text
from polyhead.run.run import Run
from polyhead.tokenizers.display import escape_controls
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.attention_page import heat_map_svg

HOSTILE = "\x1b[2J\x1b]0;title\x07 a\tb\r \x7f \x9b31m c"


def escape_by_category(text):
    """Control characters are those of Unicode's category Cc."""
    controls = {c for c in text if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    return "".join(f"\\x{ord(c):02x}" if c in controls else c for c in text)


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    tokenizer, directory = train_tokenizer(["a dog"], Choice("byte"), 300), tmp_path_factory.mktemp("runs")
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 256}
    settings = GenerationConfig(chat=Choice("plain"), max_new_tokens=60, max_length_ratio=4.0)
    for name in ("encoder-decoder", "decoder", "encoder", "classifier"):
        options = {"kind": "encoder", "labels": ["\x1bc", "x"]} if name == "classifier" else {"kind": name}
        torch.manual_seed(1)
        model = build(ModelConfig(**sizes, **options), seed=3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        Run(model, tokenizer, settings).save(directory / name)
    return directory


@pytest.mark.parametrize(
    ("arguments", "stdin"),
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
def test_terminal_output_has_no_controls(runs, monkeypatch, capsys, arguments, stdin):
    """Output to a file is unchanged."""
    verb, run, *options = arguments

    def run_verb(stream):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([verb, str(runs / run), *options]) == 0, capsys.readouterr().err
        return stream.buffer.getvalue().decode()

    plain, terminal = (run_verb(stream(io.BytesIO(), newline="")) for stream in (io.TextIOWrapper, Terminal))
    if verb != "attention":  # whose maps are the same everywhere
        assert terminal == escape_by_category(plain) != plain
    assert escape_by_category(terminal) == terminal


def test_controls_are_those_of_unicode():
    text = "".join(map(chr, range(0x3000)))
    assert escape_controls(text) == escape_by_category(text)
    attention = AttentionMap(["\x1b", "b"], ["\x07", "long"], [[[[1.0, 0.0], [0.5, 0.5]]]])
    lines = attention_text(attention).splitlines()
    assert lines[3:5] == ["\\x07   ██     1.00 \\x1b", "long   ▒▒ ▒▒  0.50 \\x1b"]
    assert escape_by_category(heat_map_svg(attention)) == heat_map_svg(attention)
