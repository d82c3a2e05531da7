"""Tests of hf/families/gemma.py."""

from tests.hf.families.causal import CausalFamily


class TestGemma(CausalFamily):
    names = ("gemma",)
