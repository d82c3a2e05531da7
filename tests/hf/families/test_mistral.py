"""Tests of hf/families/mistral.py."""

from tests.hf.families.causal import CausalFamily


class TestMistral(CausalFamily):
    names = ("mistral",)
