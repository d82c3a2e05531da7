"""Tests of hf/families/gptj.py."""

from tests.hf.families.causal import CausalFamily


class TestGptj(CausalFamily):
    names = ("gptj",)
