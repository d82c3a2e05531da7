"""Options of penalties have the effect of the settings of a run."""

from __future__ import annotations

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.fixture
def run(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(["a dog barks .", "User: Assistant: System:"] * 20, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64, "tie_embeddings": "none"}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=3).eval()
    run = Run(model, tokenizer, GenerationConfig(max_new_tokens=12, temperature=0.0, chat=Choice("plain")))
    run.save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return run


def test_penalty_options_are_those_of_the_library(run, cli):
    outputs = set()
    for settings in ({}, {"frequency_penalty": 2.0}, {"presence_penalty": -2.0}):
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        out = cli("generate", "run", "a dog", *options).out
        assert out == f"a dog{run.generate(['a dog'], **settings)[0]}\n"
        outputs.add(out)
        answer = run.chat([{"role": "user", "content": "a dog barks"}], **settings)
        assert cli("chat", "run", *options, stdin="a dog barks\n").out == f"{answer}\n"
    assert len(outputs) == 3


@pytest.mark.parametrize("command", [["generate", "run", "a"], ["chat", "run"]])
def test_penalty_out_of_range_is_refused(command, run, cli):
    message = "frequency_penalty: 3.0 is out of range: should be less than or equal to 2"
    assert message in cli(*command, "--frequency-penalty", 3, stdin="a dog barks\n", code=2).err
