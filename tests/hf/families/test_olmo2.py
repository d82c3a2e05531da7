"""Tests of hf/families/olmo2.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestOlmo2(CausalFamily):
    names = ("olmo2",)
