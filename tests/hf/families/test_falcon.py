"""Tests of hf/families/falcon.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestFalcon(CausalFamily):
    names = ("falcon",)
