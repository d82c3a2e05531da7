"""Tests of hf/families/helium.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestHelium(CausalFamily):
    names = ("helium",)
