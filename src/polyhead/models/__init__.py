"""Whole models, thin: Embedding -> Stack -> Head."""

from polyhead.models.build import Model, build, preset_config
from polyhead.models.causal_lm import CausalLM
from polyhead.models.ensemble import Ensemble
from polyhead.models.masked_lm import (
    Classifier,
    Encoder,
    MaskedLM,
    NSPModel,
    QuestionAnswerer,
    ReplacedTokenDetector,
    SentenceEncoder,
    TokenClassifier,
)
from polyhead.models.seq2seq import Seq2Seq

__all__ = [
    "CausalLM",
    "Classifier",
    "Encoder",
    "Ensemble",
    "MaskedLM",
    "Model",
    "NSPModel",
    "QuestionAnswerer",
    "ReplacedTokenDetector",
    "SentenceEncoder",
    "Seq2Seq",
    "TokenClassifier",
    "build",
    "preset_config",
]
