"""Tests of hf/families/nanochat.py."""

from tests.hf.families.causal import CausalFamily


class TestNanochat(CausalFamily):
    names = ("nanochat",)
