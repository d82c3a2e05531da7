"""Tests of hf/families/gpt_bigcode.py."""

from tests.hf.families.causal import CausalFamily


class TestGptBigcode(CausalFamily):
    names = ("gpt_bigcode",)
