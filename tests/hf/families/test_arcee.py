"""Tests of hf/families/arcee.py."""

from tests.hf.families.causal import CausalFamily


class TestArcee(CausalFamily):
    names = ("arcee",)
