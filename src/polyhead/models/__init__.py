"""Whole models, thin: Embedding -> Stack -> Head."""

from polyhead.models.build import Model, build, preset
from polyhead.models.causal_lm import CausalLM
from polyhead.models.detector import Detector
from polyhead.models.ensemble import Ensemble
from polyhead.models.masked_lm import Classifier, Embedder, Encoder, MaskedLM, PairLM
from polyhead.models.seq2seq import Seq2Seq

__all__ = [
    "CausalLM",
    "Classifier",
    "Detector",
    "Embedder",
    "Encoder",
    "Ensemble",
    "MaskedLM",
    "Model",
    "PairLM",
    "Seq2Seq",
    "build",
    "preset",
]
