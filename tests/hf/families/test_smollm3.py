"""Tests of hf/families/smollm3.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestSmollm3(CausalFamily):
    names = ("smollm3",)
