"""Tests of hf/families/olmo2.py."""

from tests.hf.families.causal import CausalFamily


class TestOlmo2(CausalFamily):
    names = ("olmo2",)
