"""Tests of hf/families/opt.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestOpt(CausalFamily):
    names = ("opt",)
