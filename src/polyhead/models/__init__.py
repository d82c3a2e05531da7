"""Whole models, thin: Embedding -> Stack -> Head."""

from polyhead.models.build import build, preset
from polyhead.models.seq2seq import Seq2Seq

__all__ = ["Seq2Seq", "build", "preset"]
