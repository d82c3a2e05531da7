"""Tests of hf/families/exaone4.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestExaone4(CausalFamily):
    names = ("exaone4",)
