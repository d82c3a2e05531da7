"""Defaults for using a trained model. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from polyhead.config.config_sections import ConfigSection
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.core.registry import CACHE, CHAT, GRAMMAR, SPECULATIVE, Registry

Pooling = Literal["mean", "first", "max", "last", "own"]
ScoreActivation = Literal["sigmoid", "identity"]
_SCOPE = re.compile(r"^(?:sampling|translations|language models|beam search): ")
_TOKEN_ID = re.compile("[0-9]{1,10}")
MAX_TOKEN_ID = 2**31 - 1
MAX_LOGIT_BIAS = 100
RELATED_KEYS = ("beam_size", "n_best", "embed_prompt", "embed_prompts")  # checked together
LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(lambda value: _parse_logit_bias(value)),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_TOKEN_ID.pattern}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
        }
    ),
]
EarlyStoppingMode = Annotated[
    bool | Literal["never"], BeforeValidator(lambda value: _parse_early_stopping(value))
]

SAMPLES = frozenset(["sampled text", "sampled translations"])
BEAMS = frozenset(["beam search", "translations"])
TEXTS = SAMPLES | BEAMS
TRANSLATIONS = frozenset(["sampled translations", "translations"])
EMBEDDINGS = frozenset(["text embeddings", "token embeddings"])


class HttpField(NamedTuple):
    """How a setting differs in HTTP requests from the key of a recipe."""

    description: str = ""  # default: that of the key, without the output that it starts with
    name: str = ""  # default: that of the key
    limits: Mapping[str, float] = {}
    service_limit: str = ""  # attribute of serve's Limits that bounds it
    # clients send it at a value without effect, also where it has none: at its default, or at that of the run
    ignored_value: Literal["default", "of the run"] | None = None
    has_default: bool = False  # whether /openapi.json names the default; else it is that of the run


class SettingUse(NamedTuple):
    """Where a setting of GenerationConfig has an effect, and where it can be set besides a recipe."""

    outputs: frozenset[str]  # kinds of output
    verbs: frozenset[str]  # verbs that have it as an option
    http: HttpField | None  # None: no field of an HTTP request
    limits: Mapping[str, float]


def _setting(
    default: Any,
    outputs: Set[str],
    description: str,
    verbs: str = "",
    http: HttpField | None = None,
    examples: list[Any] | None = None,
    **limits: float,
) -> Any:
    """The one entry of a setting: recipe key, option of ``verbs``, field of HTTP requests, and limits."""
    use = SettingUse(frozenset(outputs), frozenset(verbs.split()), http, limits)
    source: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    options: dict[str, Any] = source | {"json_schema_extra": {"use": use}, **limits}
    return Field(description=description, examples=examples, **options)


class GenerationConfig(ConfigSection):
    """Settings of beam search (translations), sampling (language models), embeddings and classification."""

    model_config = ConfigDict(validate_default=False)  # a request checks its own settings only

    beam_size: int = _setting(
        5, BEAMS, "number of beams; 1 is greedy search", "translate eval",
        HttpField("use beam search with this number of beams instead of sampling",
                  limits={"le": MAX_TOKEN_ID}, service_limit="max_beams"), ge=1, le=64,
    )  # fmt: skip
    length_penalty: float = _setting(
        1.0, BEAMS, "exponent of the length: values > 0 favour longer outputs", "generate translate eval",
        HttpField("beam search: values > 0 favour longer texts", ignored_value="default"), ge=-50, le=50,
    )  # fmt: skip
    n_best: int = _setting(
        1,
        BEAMS,
        "number of translations per sentence in polyhead translate, at most beam_size",
        "translate",
        ge=1,
    )
    min_new_tokens: int = _setting(
        0, TEXTS, "minimum number of output tokens", "translate eval",
        HttpField(name="min_tokens", service_limit="max_tokens"), ge=0,
    )  # fmt: skip
    max_length_ratio: float = _setting(
        2.0, TRANSLATIONS, "maximum number of output tokens: ratio x source tokens + extra", ge=0, le=1e6
    )
    max_length_extra: int = _setting(
        20, TRANSLATIONS, "number of output tokens allowed in addition to the ratio", ge=0
    )
    bad_words: tuple[str, ...] = _setting(
        (), {"translations"}, "translations: tokens that are never generated, e.g. [<unk>]"
    )
    stop_tokens: tuple[str, ...] = _setting(
        (), TEXTS, "stop tokens in addition to the tokenizer's end token, e.g. [<end_of_turn>]"
    )
    early_stopping: EarlyStoppingMode = _setting(
        False,
        BEAMS,
        "stopping rule of beam search: true, false or never, as in Hugging Face generate",
        "translate eval",
    )
    max_new_tokens: int = _setting(
        200,
        {"sampled text", "beam search"},
        "language models: maximum number of output tokens",
        "generate chat",
        ge=1,
    )
    temperature: float = _setting(
        1.0, SAMPLES,
        "sampling temperature: values < 1 are more conservative, values > 1 more diverse, 0 is greedy",
        "generate chat translate", HttpField(limits={"le": 1e6}), ge=0,
    )  # fmt: skip
    top_k: int = _setting(
        0, SAMPLES, "sampling: only the k most likely tokens; 0: all", "generate chat translate",
        HttpField("sample from the k most likely tokens; 0 or -1: all", limits={"ge": -1},
                  ignored_value="default"), ge=0,
    )  # fmt: skip
    top_p: float = _setting(
        1.0, SAMPLES, "sampling: only the most likely tokens with this total probability",
        "generate chat translate",
        HttpField("sample from the most likely tokens with this total probability", ignored_value="default"),
        gt=0, le=1,
    )  # fmt: skip
    min_p: float = _setting(
        0.0, SAMPLES, "sampling: only tokens with at least this fraction of the highest probability",
        "generate chat translate",
        HttpField("sample from tokens with at least this fraction of the highest probability",
                  ignored_value="default"), ge=0, le=1,
    )  # fmt: skip
    repetition_penalty: float = _setting(
        1.0, SAMPLES, "sampling: values > 1 discourage repetition", "generate chat",
        HttpField(limits={"le": 1e6}, ignored_value="default"), gt=0,
    )  # fmt: skip
    frequency_penalty: float = _setting(
        0.0, SAMPLES, "sampling: subtracted from a token's logit for each occurrence in the output",
        "generate chat", HttpField(ignored_value="of the run"), ge=-2, le=2,
    )  # fmt: skip
    presence_penalty: float = _setting(
        0.0, SAMPLES, "sampling: subtracted once from the logit of a token that occurs in the output",
        "generate chat", HttpField(ignored_value="of the run"), ge=-2, le=2,
    )  # fmt: skip
    logit_bias: LogitBias = _setting(
        {}, SAMPLES, "sampling: added to logits, from -100 to 100 by token id, e.g. {7: -100}",
        http=HttpField("added to the logits of tokens, by token id", ignored_value="of the run",
                       has_default=True),
    )  # fmt: skip
    no_repeat_ngram_size: int = _setting(
        0, TEXTS, "no n-gram of this size occurs twice in a text; 0: no limit",
        "generate chat translate eval", HttpField("no n-gram of this size occurs twice; 0: no limit"), ge=0,
    )  # fmt: skip
    batch_tokens: int = _setting(
        4096, TEXTS, "number of source tokens decoded together", "translate eval", gt=0
    )
    cache: Choice | None = _setting(
        None,
        TEXTS,
        "KV cache; default: one that fits the model",
        "generate chat translate eval serve",
        examples=["static", "h2o,budget=256"],
    )
    speculative: Choice | None = _setting(
        None,
        {"sampled text"},
        "language models: draft source of speculative decoding, several tokens per step; default: none",
        "generate chat serve",
        examples=["lookup", "draft,run=runs/small,tokens=4"],
    )

    chat: Choice | None = _setting(
        None,
        frozenset(),
        "language models: chat format; default: none, no conversations",
        "chat serve",
        examples=["chatml"],
    )
    grammar: Choice | None = _setting(
        None,
        {"sampled text", "beam search"},
        "language models: grammar that constrains the output; default: no constraint",
        "generate chat",
        examples=["json", "'choice,choices=[red, blue]'"],
    )

    pooling: Pooling = _setting(
        "mean",
        {"text embeddings"},
        "pooling of embed: mean, first, max or last of the tokens of a text, or own, the model's pooling",
        "embed",
    )
    normalize: bool = _setting(False, EMBEDDINGS, "whether embed normalizes vectors to length 1", "embed")
    embed_max_len: int | None = _setting(
        None,
        EMBEDDINGS,
        "maximum number of tokens of a text in embed and classify; default: the maximum of the model, or of "
        "a classifier's training",
        gt=0,
    )
    embed_prompts: dict[str, str] = _setting(
        {}, EMBEDDINGS, 'prompts that embed can put before texts, by name, e.g. {query: "query: "}'
    )
    embed_prompt: str = _setting(
        "", EMBEDDINGS, "prompt that embed puts before a text: a name of embed_prompts, or the prompt itself"
    )
    include_prompt: bool = _setting(
        True, EMBEDDINGS, "whether the pooling of a text includes the tokens of its prompt"
    )

    score_activation: ScoreActivation = _setting(
        "sigmoid",
        frozenset(),
        "classifiers with one label: activation of their score; sigmoid maps it to 0..1",
    )

    threshold: float = _setting(
        0.5,
        frozenset(),
        "classifiers with several labels per text: lowest probability of a label that is predicted",
        ge=0,
        le=1,
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


SETTING_USES: dict[str, SettingUse] = {
    name: cast(Any, field.json_schema_extra)["use"] for name, field in GenerationConfig.model_fields.items()
}
EFFECTIVE_KEYS = {
    output: frozenset(name for name, use in SETTING_USES.items() if output in use.outputs)
    for output in TEXTS | EMBEDDINGS
}
"""Keys of generation that have an effect, for each kind of output."""
SAMPLING_KEYS = EFFECTIVE_KEYS["sampled translations"] - EFFECTIVE_KEYS["translations"]
"""Keys of sampling: any of them samples a translation in place of beam search."""
_GENERATED_TEXT_KEYS = EFFECTIVE_KEYS["sampled text"] | EFFECTIVE_KEYS["beam search"]
_EMBEDDING_KEYS = EFFECTIVE_KEYS["text embeddings"]
USED_KEYS = {
    # sampling of translations is requested per call, not in a recipe
    "encoder-decoder": ("translations", EFFECTIVE_KEYS["translations"]),
    # beam search of texts is requested per call, not in a recipe
    "decoder": (
        "output of language models",
        _GENERATED_TEXT_KEYS - {"beam_size", "n_best"} | _EMBEDDING_KEYS | {"chat"},
    ),
    "encoder": ("embeddings and classification", _EMBEDDING_KEYS | {"score_activation", "threshold"}),
}
"""The output of a model of each kind, and the keys that a recipe may set for it."""


def verb_settings(verb: str) -> list[str]:
    """The settings that are options of a verb of the command line."""
    return [name for name, use in SETTING_USES.items() if verb in use.verbs]


def strip_scope(description: str) -> str:
    """The description of a setting without the kind of output that it starts with, if any."""
    return _SCOPE.sub("", description)


def _parse_logit_bias(value: Any) -> dict[int, float]:
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
