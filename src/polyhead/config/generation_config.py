"""Defaults for using a trained model. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from polyhead.config.config_sections import ConfigSection
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.core.registry import CACHE, CHAT, GRAMMAR, SPECULATIVE, Registry

Pooling = Literal["mean", "first", "max", "last", "own"]
ScoreActivation = Literal["sigmoid", "identity"]
LogitBias = Annotated[dict[int, float], BeforeValidator(lambda value: parse_logit_bias(value))]
EarlyStoppingMode = Annotated[
    bool | Literal["never"], BeforeValidator(lambda value: _parse_early_stopping(value))
]
_TOKEN_ID = re.compile("[0-9]{1,10}")
MAX_TOKEN_ID = 2**31 - 1
MAX_LOGIT_BIAS = 100


class GenerationConfig(ConfigSection):
    """Settings of beam search (translations), sampling (language models), embeddings and classification."""

    beam_size: int = Field(5, ge=1, le=64, description="number of beams; 1 is greedy search")
    length_penalty: float = Field(
        1.0, ge=-50, le=50, description="exponent of the length: values > 0 favour longer outputs"
    )
    n_best: int = Field(
        1, ge=1, description="number of translations per sentence in polyhead translate, at most beam_size"
    )
    min_new_tokens: int = Field(0, ge=0, description="minimum number of output tokens")
    max_length_ratio: float = Field(
        2.0, ge=0, le=1e6, description="maximum number of output tokens: ratio x source tokens + extra"
    )
    max_length_extra: int = Field(
        20, ge=0, description="number of output tokens allowed in addition to the ratio"
    )
    bad_words: tuple[str, ...] = Field(
        (), description="translations: tokens that are never generated, e.g. [<unk>]"
    )
    stop_tokens: tuple[str, ...] = Field(
        (), description="stop tokens in addition to the tokenizer's end token, e.g. [<end_of_turn>]"
    )
    early_stopping: EarlyStoppingMode = Field(
        False, description="stopping rule of beam search: true, false or never, as in Hugging Face generate"
    )
    max_new_tokens: int = Field(200, ge=1, description="language models: maximum number of output tokens")
    temperature: float = Field(
        1.0,
        ge=0,
        description="sampling temperature: values < 1 are more conservative, values > 1 more diverse, 0 "
        "is greedy",
    )
    top_k: int = Field(0, ge=0, description="sampling: only the k most likely tokens; 0: all")
    top_p: float = Field(
        1.0, gt=0, le=1, description="sampling: only the most likely tokens with this total probability"
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="sampling: only tokens with at least this fraction of the highest probability",
    )
    repetition_penalty: float = Field(1.0, gt=0, description="sampling: values > 1 discourage repetition")
    frequency_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="sampling: subtracted from a token's logit for each occurrence in the output",
    )
    presence_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="sampling: subtracted once from the logit of a token that occurs in the output",
    )
    logit_bias: LogitBias = Field(
        default_factory=dict,
        description="sampling: added to logits, from -100 to 100 by token id, e.g. {7: -100}",
    )
    no_repeat_ngram_size: int = Field(
        0, ge=0, description="no n-gram of this size occurs twice in a text; 0: no limit"
    )
    batch_tokens: int = Field(4096, gt=0, description="number of source tokens decoded together")
    cache: Choice | None = Field(
        None, description="KV cache; default: one that fits the model", examples=["static", "h2o,budget=256"]
    )
    speculative: Choice | None = Field(
        None,
        description="language models: draft source of speculative decoding, several tokens per step; "
        "default: none",
        examples=["lookup", "draft,run=runs/small,tokens=4"],
    )

    chat: Choice | None = Field(
        None,
        description="language models: chat format; default: none, no conversations",
        examples=["chatml"],
    )
    grammar: Choice | None = Field(
        None,
        description="language models: grammar that constrains the output; default: no constraint",
        examples=["json", "'choice,choices=[red, blue]'"],
    )

    pooling: Pooling = Field(
        "mean",
        description="pooling of embed: mean, first, max or last of the tokens of a text, or own, the "
        "model's pooling",
    )
    normalize: bool = Field(False, description="whether embed normalizes vectors to length 1")
    embed_max_len: int | None = Field(
        None,
        gt=0,
        description="maximum number of tokens of a text in embed and classify; default: the maximum of "
        "the model, or of a classifier's training",
    )
    embed_prompts: dict[str, str] = Field(
        default_factory=dict,
        description='prompts that embed can put before texts, by name, e.g. {query: "query: "}',
    )
    embed_prompt: str = Field(
        "", description="prompt that embed puts before a text: a name of embed_prompts, or the prompt itself"
    )
    include_prompt: bool = Field(
        True, description="whether the pooling of a text includes the tokens of its prompt"
    )

    score_activation: ScoreActivation = Field(
        "sigmoid",
        description="classifiers with one label: activation of their score; sigmoid maps it to 0..1",
    )

    @field_validator("cache", "speculative", "chat", "grammar")
    @classmethod
    def _check_part(cls, choice: Choice | None, info: ValidationInfo) -> Choice | None:
        known = {"cache": CACHE, "speculative": SPECULATIVE, "chat": CHAT, "grammar": GRAMMAR}
        registry: Registry[Any] = known[str(info.field_name)]
        return None if choice is None else registry.check(choice)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.n_best > self.beam_size:
            raise UserError(f"n_best ({self.n_best}) is more than beam_size ({self.beam_size})")
        if self.embed_prompt not in self.embed_prompts and re.fullmatch(
            r"[\w-]+", self.embed_prompt
        ):  # not a prompt text
            raise UserError(
                f"{unknown_name_error('prompt', self.embed_prompt, self.embed_prompts)}; a prompt "
                "itself contains a space or punctuation, e.g. 'query: '"
            )
        return self

    @property
    def prompt_text(self) -> str:
        """The text put before each text to embed."""
        return self.embed_prompts.get(self.embed_prompt, self.embed_prompt)

    def check_effective(self, kind: str) -> None:
        """Raise a UserError for the first setting that has no effect on a model of this kind."""
        output, used = USED_KEYS[kind]
        for name, field in type(self).model_fields.items():
            if name not in used and getattr(self, name) != field.get_default(call_default_factory=True):
                raise UserError(
                    f"generation.{name} has no effect on {output}; valid settings: {', '.join(sorted(used))}"
                )


_PENALTY_KEYS = frozenset(["repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias"])
SAMPLING_KEYS = _PENALTY_KEYS | {"temperature", "top_k", "top_p", "min_p"}
"""Keys of sampling: any of them samples a translation in place of beam search."""
_TEXT_SAMPLING_KEYS = SAMPLING_KEYS | {"max_new_tokens", "speculative"}
_COMMON_KEYS = frozenset(["cache", "batch_tokens", "no_repeat_ngram_size", "stop_tokens"])
_EMBEDDING_KEYS = frozenset(
    ["pooling", "normalize", "embed_max_len", "embed_prompts", "embed_prompt", "include_prompt"]
)
_LENGTH_LIMIT_KEYS = frozenset(["max_length_ratio", "max_length_extra"])
_BEAM_SEARCH_KEYS = (
    frozenset(GenerationConfig.model_fields)
    - _TEXT_SAMPLING_KEYS
    - _COMMON_KEYS
    - _EMBEDDING_KEYS
    - {"chat", "grammar", "score_activation"}
)
EFFECTIVE_KEYS = {
    "sampled text": _TEXT_SAMPLING_KEYS | _COMMON_KEYS | {"grammar", "min_new_tokens"},
    "sampled translations": SAMPLING_KEYS | _COMMON_KEYS | _LENGTH_LIMIT_KEYS | {"min_new_tokens"},
    "beam search": _BEAM_SEARCH_KEYS - _LENGTH_LIMIT_KEYS - {"bad_words"}
    | _COMMON_KEYS
    | {"max_new_tokens", "grammar"},
    "translations": _BEAM_SEARCH_KEYS | _COMMON_KEYS,
    "text embeddings": _EMBEDDING_KEYS,
    "token embeddings": _EMBEDDING_KEYS - {"pooling"},
}
"""Keys of generation that have an effect, for each kind of output."""
_GENERATED_TEXT_KEYS = EFFECTIVE_KEYS["sampled text"] | EFFECTIVE_KEYS["beam search"]
USED_KEYS = {
    # sampling of translations is requested per call, not in a recipe
    "encoder-decoder": ("translations", EFFECTIVE_KEYS["translations"]),
    # beam search of texts is requested per call, not in a recipe
    "decoder": (
        "output of language models",
        _GENERATED_TEXT_KEYS - {"beam_size", "n_best"} | _EMBEDDING_KEYS | {"chat"},
    ),
    "encoder": ("embeddings and classification", _EMBEDDING_KEYS | {"score_activation"}),
}
"""The output of a model of each kind, and the keys that a recipe may set for it."""


def parse_logit_bias(value: Any) -> dict[int, float]:
    """Parse logit biases by token id; JSON has the ids as strings."""
    if not isinstance(value, Mapping):
        raise UserError(f"{format_value(value)} is not a mapping from token ids to numbers, e.g. {{7: -100}}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and _TOKEN_ID.fullmatch(key) else key
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) <= MAX_TOKEN_ID:
            blank = "; YAML requires a space after the colon: {7: -100}" if ":" in str(key) else ""
            raise UserError(f"{format_value(key)} is not a token id{blank}")
        if (
            isinstance(bias, bool)
            or not isinstance(bias, Real)
            or not -MAX_LOGIT_BIAS <= float(bias) <= MAX_LOGIT_BIAS
        ):
            raise UserError(
                f"token {token} has the bias {format_value(bias)}, expected a number from "
                f"-{MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}"
            )
        if int(token) in biases:
            raise UserError(f"token {token} occurs twice")
        biases[int(token)] = float(bias)
    return biases


def _parse_early_stopping(value: Any) -> Any:
    """Parse true, false or never, with one error message in place of one per union member."""
    words = {"true": True, "false": False, "never": "never"}
    if str(value).lower() not in words:
        raise UserError(f"{value!r} is not one of true, false, never")
    return words[str(value).lower()]
