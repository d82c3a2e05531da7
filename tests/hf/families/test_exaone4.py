"""Tests of hf/families/exaone4.py."""

from tests.hf.families.causal import CausalFamily


class TestExaone4(CausalFamily):
    names = ("exaone4",)
