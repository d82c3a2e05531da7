"""Tests of hf/families/distilbert.py."""

from __future__ import annotations

from tests.hf.families.encoders import EncoderFamily


class TestDistilbert(EncoderFamily):
    names = ("distilbert",)
