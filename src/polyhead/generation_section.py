"""How a trained model is used, where nothing else is said. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from polyhead.errors import UserError, show, unknown
from polyhead.registry import CACHE, CHAT, FORM, SPECULATE, Choice, Registry
from polyhead.sections import Section

Pooling = Literal["mean", "first", "max", "last", "own"]
Biases = Annotated[dict[int, float], BeforeValidator(lambda given: biases(given))]
Early = Annotated[bool | Literal["never"], BeforeValidator(lambda given: _early(given))]
ID = re.compile("[0-9]{1,10}")
LARGEST = 2**31 - 1  # that a token id may be
BIAS = 100  # the largest that a logit may have


class GenerationConfig(Section):
    """How outputs are searched for (translations), or drawn (what a language model says)."""

    beam_size: int = Field(5, ge=1, le=64, description="hypotheses kept; 1 is greedy")
    length_penalty: float = Field(
        1.0, ge=-50, le=50, description="exponent of the length: above 0 favours longer outputs"
    )
    n_best: int = Field(
        1, ge=1, description="translations that polyhead translate gives of a sentence; at most beam_size"
    )
    min_new_tokens: int = Field(0, ge=0, description="shortest output, in tokens")
    max_length_ratio: float = Field(
        2.0, ge=0, le=1e6, description="an output has at most ratio x source + extra tokens"
    )
    max_length_extra: int = Field(20, ge=0, description="tokens an output may have beyond the ratio")
    forbidden: tuple[str, ...] = Field(
        (), description="translations: tokens that are never said, e.g. [<unk>]"
    )
    ends: tuple[str, ...] = Field(
        (), description="tokens that end a text as the tokenizer's own end does, e.g. [<end_of_turn>]"
    )
    early_stopping: Early = Field(False, description="true, false or never, as in Hugging Face generate")
    max_new_tokens: int = Field(200, ge=1, description="language models: longest output, in tokens")
    temperature: float = Field(
        1.0, ge=0, description="what is drawn: below 1 safer, above 1 bolder, 0 the likeliest"
    )
    top_k: int = Field(0, ge=0, description="what is drawn: only the k likeliest tokens; 0: all")
    top_p: float = Field(
        1.0, gt=0, le=1, description="what is drawn: the likeliest tokens with this much probability"
    )
    min_p: float = Field(
        0.0, ge=0, le=1, description="what is drawn: tokens at least this share as likely as the likeliest"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, description="what is drawn: above 1 against saying things again"
    )
    frequency_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="what is drawn: taken from a token's logit for every time that it was said",
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="what is drawn: taken from a token's logit once it was said"
    )
    logit_bias: Biases = Field(
        default_factory=dict,
        description="what is drawn: added to logits, from -100 to 100 by token id, e.g. {7: -100}",
    )
    no_repeat_ngram_size: int = Field(
        0, ge=0, description="no n-gram of this length comes twice in a text; 0: no limit"
    )
    batch_tokens: int = Field(4096, gt=0, description="source tokens decoded together")
    cache: Choice | None = Field(
        None, description="what decoding remembers; what fits the model if not given"
    )
    speculate: Choice | None = Field(
        None, description="language models: who guesses tokens, several a step; nobody if not given"
    )

    chat: Choice | None = Field(
        None, description="language models: how conversations are written; none are held if not given"
    )
    form: Choice | None = Field(
        None, description="language models: what an output must look like; anything goes if not given"
    )

    pooling: Pooling = Field(
        "mean",
        description="how embed makes one vector of a text: mean, first, max or last of its tokens, or own",
    )
    normalize: bool = Field(False, description="whether such a vector has the length 1")
    max_text_len: int | None = Field(
        None,
        gt=0,
        description="tokens of a text that embed and classify read; if not given, those that the model can, or a classifier has learned to",
    )
    prompts: dict[str, str] = Field(
        default_factory=dict,
        description='what embed can put before texts, by name, e.g. {query: "query: "}',
    )
    prompt: str = Field("", description="what embed puts before a text, a name of prompts or itself")
    pool_prompt: bool = Field(True, description="whether the tokens of that count in a text's vector")

    sigmoid: bool = Field(
        True, description="classifiers of one label: whether their score is bounded by 0 and 1"
    )

    @field_validator("cache", "speculate", "chat", "form")
    @classmethod
    def _known(cls, choice: Choice | None, info: ValidationInfo) -> Choice | None:
        known = {"cache": CACHE, "speculate": SPECULATE, "chat": CHAT, "form": FORM}
        registry: Registry[Any] = known[str(info.field_name)]
        return None if choice is None else registry.check(choice)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.n_best > self.beam_size:
            raise UserError(f"n_best ({self.n_best}) is more than beam_size ({self.beam_size})")
        if self.prompt not in self.prompts and re.fullmatch(r"[\w-]+", self.prompt):  # no text to go on from
            raise UserError(
                f"{unknown('prompt', self.prompt, self.prompts)}; one that is no name has a blank or a mark, as 'query: '"
            )
        return self

    @property
    def before(self) -> str:
        """What stands before each text of which a vector is made."""
        return self.prompts.get(self.prompt, self.prompt)

    def check_used(self, kind: str) -> None:
        """A UserError names the first setting that has no effect on what a model of this kind is used for."""
        what, used = USED[kind]
        for name, field in type(self).model_fields.items():
            if name not in used and getattr(self, name) != field.get_default(call_default_factory=True):
                raise UserError(
                    f"generation.{name} has no effect on {what}; these have: {', '.join(sorted(used))}"
                )


PENALTIES = frozenset(["repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias"])
DRAWS = PENALTIES | {"temperature", "top_k", "top_p", "min_p"}
"""Any of which draws a translation, which is searched for without."""
DRAWN = DRAWS | {"max_new_tokens", "speculate"}
BOTH = frozenset(["cache", "batch_tokens", "no_repeat_ngram_size", "ends"])
POOLED = frozenset(["pooling", "normalize", "max_text_len", "prompts", "prompt", "pool_prompt"])
LENGTHS = frozenset(["max_length_ratio", "max_length_extra"])
SEARCHED = frozenset(GenerationConfig.model_fields) - DRAWN - BOTH - POOLED - {"chat", "form", "sigmoid"}
EFFECTIVE = {
    "drawn text": DRAWN | BOTH | {"form"},
    "drawn translations": DRAWS | BOTH | LENGTHS,
    "the likeliest texts": SEARCHED - LENGTHS - {"forbidden"} | BOTH | {"max_new_tokens", "form"},
    "translations": SEARCHED | BOTH,
    "vectors of texts": POOLED,
}
"""Keys of generation that have an effect on what is made."""
SAID = EFFECTIVE["drawn text"] | EFFECTIVE["the likeliest texts"]
USED = {
    # what draws them is typed where it is wanted
    "encoder-decoder": ("translations", EFFECTIVE["translations"]),
    # whether beams search for a text, and how many of them, is said where it is wanted
    "decoder": ("what a language model says", SAID - {"beam_size", "n_best"} | POOLED | {"chat"}),
    "encoder": ("vectors and classes of texts", POOLED | {"sigmoid"}),
}
"""What a model of each kind is used for, and the keys that a recipe may give for it."""


def biases(given: Any) -> dict[int, float]:
    """What is added to the logits of tokens, by their ids; JSON has those as texts."""
    if not isinstance(given, Mapping):
        raise UserError(f"{show(given)} is not an object such as {{7: -100}}, a number for each token id")
    found: dict[int, float] = {}
    for key, bias in given.items():
        token = int(key) if isinstance(key, str) and ID.fullmatch(key) else key
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) <= LARGEST:
            blank = "; YAML wants a blank behind the colon: {7: -100}" if ":" in str(key) else ""
            raise UserError(f"{show(key)} is not a token id{blank}")
        if isinstance(bias, bool) or not isinstance(bias, Real) or not -BIAS <= float(bias) <= BIAS:
            raise UserError(
                f"token {token} has the bias {show(bias)}, wanted a number from -{BIAS} to {BIAS}"
            )
        if int(token) in found:
            raise UserError(f"token {token} stands there twice")
        found[int(token)] = float(bias)
    return found


def _early(given: Any) -> Any:
    """Say what is allowed in one line, where a union would complain once for each member."""
    words = {"true": True, "false": False, "never": "never"}
    if str(given).lower() not in words:
        raise UserError(f"{given!r} is not one of true, false, never")
    return words[str(given).lower()]
