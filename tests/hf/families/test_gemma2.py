"""Tests of hf/families/gemma2.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGemma2(CausalFamily):
    names = ("gemma2",)
