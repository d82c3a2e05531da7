"""Tests of hf/families/phi.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestPhi(CausalFamily):
    names = ("phi",)
