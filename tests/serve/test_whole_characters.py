"""What a limit of tokens cuts inside a character reaches no client as half of one."""

from __future__ import annotations

from typing import Any

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

MARK = "\ufffd"


def untrained() -> Run:
    """A language model of random weights that says bytes."""
    tokenizer = train_tokenizer(["a"], Choice("byte"), 261)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=3)
    return Run(model, tokenizer, GenerationConfig(max_new_tokens=5, chat=Choice("plain")))


def test_every_answer_ends_with_a_whole_character_and_counts_all_its_tokens(serving: Any) -> None:
    messages = [{"role": "user", "content": "你"}]
    with serving(untrained()) as live:
        cut = 0
        for seed in range(8):
            asked = {"prompt": "你好", "seed": seed, "max_tokens": 5, "logprobs": 0}
            whole = live.ask("/v1/completions", asked).json()
            (choice,) = whole["choices"]
            pieces = live.events("/v1/completions", asked)
            assert "".join(event["choices"][0]["text"] for event in pieces) == choice["text"]
            assert not choice["text"].endswith(MARK)
            told = choice["logprobs"]["tokens"]
            assert whole["usage"]["completion_tokens"] == len(told)
            cut += choice["finish_reason"] == "length" and told[-1].startswith("bytes:")
            talk = {"messages": messages, "seed": seed, "max_tokens": 5}
            answer = live.ask("/v1/chat/completions", talk).json()["choices"][0]["message"]["content"]
            pieces = live.events("/v1/chat/completions", talk)
            assert "".join(event["choices"][0]["delta"].get("content") or "" for event in pieces) == answer
            asked = {"input": "你", "temperature": 1.0, "max_output_tokens": 5}
            said = live.ask("/v1/responses", asked).json()["output"][0]["content"][0]["text"]
            assert not answer.endswith(MARK) and not said.endswith(MARK)
        assert cut, "some must have been cut, or nothing is tested"
