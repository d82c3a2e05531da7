"""Tests of hf/families/granite.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGranite(CausalFamily):
    names = ("granite", "granitemoe")
