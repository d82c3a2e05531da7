"""Tests of hf/families/helium.py."""

from tests.hf.families.causal import CausalFamily


class TestHelium(CausalFamily):
    names = ("helium",)
