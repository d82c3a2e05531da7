"""Tests of hf/families/mpt.py."""

from tests.hf.families.causal import CausalFamily


class TestMpt(CausalFamily):
    names = ("mpt",)
