"""Whole models, thin: Embedding -> Stack -> Head."""

from polyhead.models.build import build
from polyhead.models.presets import PRESETS, preset
from polyhead.models.seq2seq import Seq2Seq

__all__ = ["PRESETS", "Seq2Seq", "build", "preset"]
