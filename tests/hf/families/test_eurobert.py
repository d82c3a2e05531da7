"""Tests of hf/families/eurobert.py."""

from __future__ import annotations

from tests.hf.families.encoders import EncoderFamily


class TestEurobert(EncoderFamily):
    names = ("eurobert",)
