"""Tests of hf/families/glm.py."""

from __future__ import annotations

from tests.hf.families.causal import CausalFamily


class TestGlm(CausalFamily):
    names = ("glm", "glm4")
