"""Tests of hf/families/nanochat.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestNanochat(CausalFamily):
    names = ("nanochat",)
