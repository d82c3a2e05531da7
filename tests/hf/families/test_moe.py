"""Tests of hf/families/moe.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestMoe(CausalFamily):
    names = ("mixtral", "qwen3_moe")
