"""Tests of hf/families/cohere.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestCohere(CausalFamily):
    names = ("cohere", "cohere2")
