"""Tests of hf/families/ernie4_5.py."""

from tests.hf.families.causal import CausalFamily


class TestErnie45(CausalFamily):
    names = ("ernie4_5",)
