"""Tests of hf/families/mpt.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestMpt(CausalFamily):
    names = ("mpt",)
