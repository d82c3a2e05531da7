"""Tests of hf/families/distilbert.py."""

from tests.hf.families.encoders import EncoderFamily


class TestDistilbert(EncoderFamily):
    names = ("distilbert",)
