"""Tests of hf/families/bloom.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestBloom(CausalFamily):
    names = ("bloom",)
