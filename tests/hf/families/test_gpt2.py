"""Tests of hf/families/gpt2.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGpt2(CausalFamily):
    names = ("gpt2",)
