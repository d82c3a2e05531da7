"""Tests of hf/families/gemma2.py."""

from tests.hf.families.causal import CausalFamily


class TestGemma2(CausalFamily):
    names = ("gemma2",)
