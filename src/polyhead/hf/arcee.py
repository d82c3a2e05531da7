"""Arcee's AFM (2025): Llama with squared ReLUs in place of gates."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, biased, biases_said, common, divided, said
from polyhead.registry import Choice

ACTIVATIONS = {"relu2": Choice("relu2"), **PLAIN}


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in AFM-4.5B."""
    given.assume(hidden_size=2560, hidden_act="relu2")
    fields = divided(given, common(given, max_len=4096, eps=1e-5, activations=ACTIVATIONS))
    return fields | attention(given, bias=given.flag("attention_bias", False)) | biased(given, fields)


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    named = activation_of(config.feed_forward, ACTIVATIONS)
    return said(config) | biases_said(config) | {"hidden_act": named}


ARCEE = FAMILY.register("arcee")(
    Family({"CausalLM": "ArceeForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
