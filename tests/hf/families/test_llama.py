"""Tests of hf/families/llama.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestLlama(CausalFamily):
    names = ("llama",)
