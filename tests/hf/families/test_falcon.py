"""Tests of hf/families/falcon.py."""

from tests.hf.families.causal import CausalFamily


class TestFalcon(CausalFamily):
    names = ("falcon",)
