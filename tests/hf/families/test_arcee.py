"""Tests of hf/families/arcee.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestArcee(CausalFamily):
    names = ("arcee",)
