"""From a config to a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from polyhead.calls import told
from polyhead.config import ModelConfig, ModelSection
from polyhead.errors import UserError, check_whole, show, unknown
from polyhead.models.causal_lm import CausalLM
from polyhead.models.detector import Detector
from polyhead.models.masked_lm import Classifier, Embedder, MaskedLM, PairLM
from polyhead.models.seq2seq import Seq2Seq
from polyhead.presets import PRESETS
from polyhead.registry import INIT

SEEDS = -(2**63), 2**64 - 1  # those that torch takes
Model = Seq2Seq | CausalLM | MaskedLM | Classifier | Embedder | Detector


ABLE = {
    "encoder-decoder": ("an encoder-decoder", "translate, eval, score or attend"),
    "decoder": ("a language model", "generate, eval, score, embed or attend"),
    "encoder": ("an encoder", "fill-mask, embed, eval or attend"),
    "encoder without a head": ("an encoder without a head", "embed or attend"),
    "classifier": ("a classifier", "classify, embed, eval or attend"),
}
"""What a model of each kind is called, and the verbs that use it."""


def kind_of(config: ModelConfig) -> str:
    """As the config says, and "classifier" for an encoder that tells classes."""
    return "classifier" if config.labels else config.kind


def check_able(config: ModelConfig, kinds: Sequence[str]) -> None:
    """A run's kind is one of those that are wanted, or a UserError says what it can do instead."""
    kind = kind_of(config)
    if kind not in kinds:
        own, able = ABLE[kind if config.head or kind != "encoder" else "encoder without a head"]
        taken = " or ".join(ABLE[wanted][0] for wanted in kinds)
        raise UserError(f"this takes {taken}, and the run is {own}: use {able}")


def model_class(config: ModelConfig) -> type[Model]:
    """What a config describes: the model of its kind; an encoder may have a vocabulary, classes, replaced tokens or nothing to score."""
    if config.kind == "encoder-decoder":
        return Seq2Seq
    if config.kind == "decoder":
        return CausalLM
    if config.labels:
        return Classifier
    if config.generator:
        return Detector
    if not config.head:
        return Embedder
    return PairLM if config.pairs else MaskedLM


@told
def build(config: ModelConfig | Mapping[str, Any], seed: int | None = None) -> Any:
    """The model that config describes, of the class of its kind, initialised as it says.

    A mapping is the keys of a ModelConfig. The same seed gives the same weights.
    """
    config = _read(config)
    if seed is not None:
        check_whole("seed", seed)
        if not SEEDS[0] <= seed <= SEEDS[1]:
            raise UserError(f"seed is {seed}; wanted one that has 64 bits")
        torch.manual_seed(seed)
    model = model_class(config)(config)
    INIT.get(config.init.name)(model, config, **config.init.options)
    return model


def _read(given: object) -> ModelConfig:
    """The config that is given, or that a mapping of its keys makes; what else comes is a UserError."""
    if isinstance(given, ModelConfig):
        return given
    if isinstance(given, Mapping):
        return ModelConfig(**{str(key): value for key, value in given.items()})
    if isinstance(given, ModelSection):
        raise UserError(
            "build wants a ModelConfig; the model of a recipe becomes one by with_vocabulary(vocab_size)"
        )
    if isinstance(given, str):
        known = f"{show(given)} is none"
        if given in PRESETS:
            known = f"{show(given)} becomes one as ModelConfig(preset={given!r}, vocab_size=...)"
        raise UserError(f"build wants a ModelConfig; {known}")
    raise UserError(f"build wants a ModelConfig, or its keys as a mapping, got {type(given).__name__}")


def preset(name: str, vocab_size: int, **changes: Any) -> ModelConfig:
    """The config of a model of the literature (``polyhead sizes`` lists them), with changes."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return ModelConfig.model_validate({"preset": name, "vocab_size": vocab_size, **changes})
