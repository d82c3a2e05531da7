"""Tests of hf/families/olmo3.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestOlmo3(CausalFamily):
    names = ("olmo3",)
