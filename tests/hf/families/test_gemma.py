"""Tests of hf/families/gemma.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGemma(CausalFamily):
    names = ("gemma",)
