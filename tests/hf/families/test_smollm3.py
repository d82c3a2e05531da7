"""Tests of hf/families/smollm3.py."""

from tests.hf.families.causal import CausalFamily


class TestSmollm3(CausalFamily):
    names = ("smollm3",)
