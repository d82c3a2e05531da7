"""Tests of hf/families/starcoder2.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestStarcoder2(CausalFamily):
    names = ("starcoder2",)
