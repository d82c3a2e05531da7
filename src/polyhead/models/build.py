"""Build a model from a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from polyhead.config.model import QUESTION_ANSWERING, TOKEN_LABELS, ModelConfig, ModelSpec
from polyhead.config.presets import PRESETS
from polyhead.core.errors import UserError, check_int, format_value, is_command_line, unknown_name_error
from polyhead.core.registry import INIT
from polyhead.core.strict_kwargs import strict_kwargs
from polyhead.models.causal_lm import CausalLM
from polyhead.models.masked_lm import (
    Classifier,
    MaskedLM,
    NSPModel,
    QuestionAnswerer,
    ReplacedTokenDetector,
    SentenceEncoder,
    TokenClassifier,
)
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.init import scale_branches
from polyhead.nn.validate_model import check_model

_SEED_RANGE = -(2**63), 2**64 - 1  # accepted by torch.manual_seed
Model = Seq2Seq | CausalLM | MaskedLM | Classifier | TokenClassifier | SentenceEncoder | ReplacedTokenDetector


CAPABILITIES = {
    "encoder-decoder": ("an encoder-decoder", "translate, eval, score or attention"),
    "decoder": ("a language model", "generate, eval, score, embed or attention"),
    "encoder": ("an encoder", "fill-mask, embed, eval or attention"),
    "encoder without a head": ("an encoder without a head", "embed or attention"),
    "classifier": ("a classifier", "classify, embed, eval or attention"),
    "token classifier": ("a token classifier", "tag, eval or attention"),
    "question answerer": ("a question answerer", "answer, eval or attention"),
}
"""For each kind of model, its name in messages and the verbs that accept it."""
METHODS = {
    "encoder-decoder": "translate, evaluate, score or attention_maps",
    "decoder": "generate, measure_perplexity, score, embed or attention_maps",
    "encoder": "fill_mask, embed or attention_maps",
    "encoder without a head": "embed or attention_maps",
    "classifier": "classify, embed or attention_maps",
    "token classifier": "tag or attention_maps",
    "question answerer": "answer or attention_maps",
}
"""For each kind of model, the methods of a run that accept it."""


def get_model_kind(config: ModelConfig) -> str:
    """The kind of a config; for an encoder with labels that of its problem."""
    if not config.labels:
        return config.kind
    kinds = {TOKEN_LABELS: "token classifier", QUESTION_ANSWERING: "question answerer"}
    return kinds.get(config.problem_type, "classifier")


def check_model_kind(config: ModelConfig, kinds: Sequence[str]) -> None:
    """Raise a UserError that names the usable verbs, or methods of a run, unless ``kinds`` has the kind."""
    kind = get_model_kind(config)
    if kind not in kinds:
        key = kind if config.lm_head or kind != "encoder" else "encoder without a head"
        name, verbs = CAPABILITIES[key]
        *others, last = (CAPABILITIES[accepted_kind][0] for accepted_kind in kinds)
        accepted = f"{', '.join(others)} or {last}" if others else last
        usable = verbs if is_command_line() else METHODS[key]
        raise UserError(f"this requires {accepted}, but the run is {name}: use {usable}")


def model_class(config: ModelConfig) -> type[Model]:
    """The model class of a config; for an encoder by its head: LM, classes, replaced tokens or none."""
    if config.kind == "encoder-decoder":
        return Seq2Seq
    if config.kind == "decoder":
        return CausalLM
    if config.labels:
        heads = {TOKEN_LABELS: TokenClassifier, QUESTION_ANSWERING: QuestionAnswerer}
        return heads.get(config.problem_type, Classifier)
    if config.generator_layers:
        return ReplacedTokenDetector
    if not config.lm_head:
        return SentenceEncoder
    return NSPModel if config.nsp_head else MaskedLM


@strict_kwargs
def build(config: ModelConfig | Mapping[str, Any], seed: int | None = None) -> Any:
    """Build the model of a config and initialise its weights.

    A mapping is taken as the keys of a ModelConfig. A UserError if its parts do not fit together. The same
    seed gives the same weights.
    """
    config = check_model(_to_model_config(config))
    if seed is not None:
        check_int("seed", seed)
        if not _SEED_RANGE[0] <= seed <= _SEED_RANGE[1]:
            raise UserError(f"seed is {seed}; expected a 64-bit integer")
        torch.manual_seed(seed)
    model = model_class(config)(config)
    INIT.get(config.init.name)(model, config, **config.init.options)
    scale_branches(model)
    return model


def _to_model_config(config: object) -> ModelConfig:
    """Convert a mapping to a ModelConfig; anything else that is not one is a UserError."""
    if isinstance(config, ModelConfig):
        return config
    if isinstance(config, Mapping):
        return ModelConfig(**{str(key): value for key, value in config.items()})
    if isinstance(config, ModelSpec):
        raise UserError(
            "build expects a ModelConfig; convert the model section of a recipe with "
            "with_vocabulary(vocab_size)"
        )
    if isinstance(config, str):
        known = f"got {format_value(config)}"
        if config in PRESETS:
            known = (
                f"{format_value(config)} is the name of a preset: use ModelConfig(preset={config!r}, "
                "vocab_size=...)"
            )
        raise UserError(f"build expects a ModelConfig; {known}")
    hint = "; pass its config" if hasattr(config, "config") else ""
    raise UserError(
        f"build expects a ModelConfig, or a mapping of its keys, got {type(config).__name__}{hint}"
    )


def preset_config(name: str, vocab_size: int, **changes: Any) -> ModelConfig:
    """The config of a published model (``polyhead params`` lists them), with changes."""
    if name not in PRESETS:
        raise unknown_name_error("preset", name, PRESETS)
    return ModelConfig.model_validate({"preset": name, "vocab_size": vocab_size, **changes})
