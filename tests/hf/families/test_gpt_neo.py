"""Tests of hf/families/gpt_neo.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGptNeo(CausalFamily):
    names = ("gpt_neo",)
