"""Whole models, thin: Embedding -> Stack -> Head."""

from polyhead.models.build import Model, build, preset
from polyhead.models.causal_lm import CausalLM
from polyhead.models.masked_lm import Classifier, Embedder, Encoder, MaskedLM
from polyhead.models.seq2seq import Seq2Seq

__all__ = ["CausalLM", "Classifier", "Embedder", "Encoder", "MaskedLM", "Model", "Seq2Seq", "build", "preset"]
