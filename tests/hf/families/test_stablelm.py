"""Tests of hf/families/stablelm.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestStablelm(CausalFamily):
    names = ("stablelm",)
