"""Which settings of generation have an effect on what, and a config with changes of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from polyhead.errors import UserError, explain
from polyhead.generate.sampling import Sampling
from polyhead.recipe import GenerationConfig

DRAWN = frozenset(
    ["max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "speculate"]
)
BOTH = frozenset(["cache", "batch_tokens", "chat", "no_repeat_ngram_size"])
SEARCHED = frozenset(GenerationConfig.model_fields) - DRAWN - BOTH
"""Keys of generation that shape what a language model says, and those that shape translations."""
LENGTHS = frozenset(["max_length_ratio", "max_length_extra"])
"""Keys that say how long a translation may be."""
UNSEARCHED = DRAWN - {"max_new_tokens"} | LENGTHS
"""Keys without effect on the likeliest continuations, which a language model finds by beam search."""


def changed(
    config: GenerationConfig, changes: dict[str, Any], without: frozenset[str], what: str
) -> GenerationConfig:
    """The config with changes, of which none may be ``without`` effect on ``what`` is made."""
    without |= {"chat"}
    for name in sorted(without & set(changes)):
        effective = ", ".join(sorted(set(GenerationConfig.model_fields) - without))
        raise UserError(f"{name} has no effect on {what}; these have: {effective}")
    try:
        return GenerationConfig.model_validate(config.model_dump() | changes)
    except ValidationError as error:
        raise explain(error, GenerationConfig) from None


def sampling_of(config: GenerationConfig) -> Sampling:
    """How a config wants tokens to be drawn."""
    return Sampling(**{field.name: getattr(config, field.name) for field in fields(Sampling)})
