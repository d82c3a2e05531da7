"""Tests of hf/families/mistral.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestMistral(CausalFamily):
    names = ("mistral",)
