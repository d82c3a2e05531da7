"""Tests of hf/families/seed_oss.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestSeedOss(CausalFamily):
    names = ("seed_oss",)
