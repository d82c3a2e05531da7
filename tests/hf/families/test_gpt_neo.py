"""Tests of hf/families/gpt_neo.py."""

from tests.hf.families.causal import CausalFamily


class TestGptNeo(CausalFamily):
    names = ("gpt_neo",)
