"""Tests of hf/families/gptj.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGptj(CausalFamily):
    names = ("gptj",)
