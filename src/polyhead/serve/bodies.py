"""What requests may say: a field, its type and bounds a line, from which both the checks and /openapi.json are made."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyhead.errors import explain, nearest, path, show
from polyhead.serve.fields import (
    Ids,
    Messages,
    Pairs,
    Prompts,
    Stops,
    TermTable,
    Texts,
    ToolChoice,
    ToolList,
    number,
    real,
)
from polyhead.serve.limits import Limits
from polyhead.serve.refusal import Refusal
from polyhead.serve.sizes import FRAME, check_size

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": ({}, None),
    "suffix": ("", None),
    "best_of": (1, None),
    "targets": (None,),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "functions": ([], None),
    "function_call": ("none", "auto", None),
    "modalities": (["text"], None),
    "reasoning_effort": (None,),
    "web_search_options": (None,),
    **dict.fromkeys(("audio", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), (None,)),
}
"""Fields of other services that would change an answer if they were kept, with the values that ask for nothing."""
HARMLESS = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
}
"""Fields of other services that change no answer."""
TOLD = 4  # fields without a meaning that are told, of however many


class Body(BaseModel):
    """What every request has."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str = Field("", description="the id of the model, as GET /v1/models says; this service has one")


class Usage(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool = Field(False, description="tell the number of tokens before the end")


class Described(BaseModel):
    """A JSON Schema as other services are given it."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    schema_: dict[str, Any] = Field(alias="schema", description="the JSON Schema that an output keeps to")


class Format(BaseModel):
    """What kind of text an output is."""

    model_config = ConfigDict(strict=True)

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="any text, a JSON object, or JSON by a schema"
    )
    json_schema: Described | None = Field(None, description="the schema, and its name")


class Structure(BaseModel):
    """What an output must look like, one of these."""

    model_config = ConfigDict(strict=True, extra="forbid")

    regex: str | None = Field(None, description="a regular expression that matches all of it")
    choice: list[str] | None = Field(None, description="texts, one of which it is")
    json_: dict[str, Any] | None = Field(None, alias="json", description="a JSON Schema")


class Drawing(Body):
    """How text is drawn or searched for. What is not given is as the run was trained to be used."""

    n: int = number(1, 1, "n", about="outputs of each text")
    seed: int = number(
        0, 0, most=2**63 - 1, about="the same seed gives the same text; at random if not given"
    )
    temperature: float = real(1.0, "below 1 safer, above 1 bolder, 0 the likeliest", ge=0, le=1e6)
    top_k: int = number(0, 0, about="only the k likeliest tokens; 0 is all")
    top_p: float = real(1.0, "only the likeliest tokens that have this probability together", gt=0, le=1)
    min_p: float = real(0.0, "only tokens this likely beside the likeliest", ge=0, le=1)
    repetition_penalty: float = real(1.0, "above 1 against saying things again", gt=0, le=1e6)
    no_repeat_ngram_size: int = number(0, 0, about="so many tokens in a row never come twice; 0: they may")
    beam_size: int = number(
        1, 1, "beams", about="draw nothing: the likeliest texts that so many hypotheses find"
    )
    length_penalty: float = real(1.0, "with beams: above 0 favours longer texts", ge=-100, le=100)
    min_tokens: int = number(0, 0, "max_tokens", about="with beams: shortest output")
    max_tokens: int = number(1, 1, "max_tokens", about="longest output, in tokens")
    stop: Stops = Field([], description="texts that end an output and are no part of it")
    stream: bool = Field(False, description="send the text as it comes, as server-sent events")
    stream_options: Usage = Field(Usage(), description="what a stream tells besides")
    truncate: bool = Field(
        False, description="take a part of a text that is longer than the model reads, instead of refusing it"
    )
    response_format: Format | None = Field(None, description="language models: any text, or JSON alone")
    structured_outputs: Structure | None = Field(
        None, description="language models: what an output must look like, in other ways"
    )


class CompletionBody(Drawing):
    """POST /v1/completions."""

    prompt: Prompts = Field(description="what is gone on from; an encoder-decoder says what it makes of it")
    max_tokens: int = number(1, 0, "max_tokens", about="longest output, in tokens; 0 with echo alone")
    logprobs: int = number(0, 0, most=5, about="tells log-probabilities of the tokens, and of so many others")
    echo: bool = Field(False, description="begin each output, and its logprobs, with its prompt")


class ChatBody(Drawing):
    """POST /v1/chat/completions."""

    messages: Messages = Field(
        description=f"who has said what; the last one is answered; each counts {FRAME} characters besides its own"
    )
    max_completion_tokens: int = number(1, 1, "max_tokens", about="another name of max_tokens")
    logprobs: bool = Field(False, description="tell the log-probability of each token said")
    top_logprobs: int = number(0, 0, most=20, about="with logprobs: and of so many others in its place")
    tools: ToolList = Field((), description="functions that the answer may call")
    tool_choice: ToolChoice = Field("auto", description="whether it calls one: auto leaves that to the model")
    parallel_tool_calls: bool | None = Field(None, description="false: it calls one at most")


class TranslationBody(Drawing):
    """POST /v1/translations."""

    input: Texts = Field(description="what is translated")
    source: str = Field("", description="its language, of models of many")
    target: str = Field("", description="the language of the translation, of models of many")
    terms: TermTable = Field(
        {}, description='what words of the input must become, as {"dog": "Hund"}; of several texts one'
    )
    return_attention: bool = Field(False, description="tell where the decoder looked, for each token")
    return_scores: bool = Field(True, description="tell the score of what beam search found")


class EmbeddingBody(Body):
    """POST /v1/embeddings."""

    input: Texts = Field(description="texts, a vector each")
    encoding_format: str = Field(
        "float", pattern="^(float|base64)$", description="float or base64 (float32, little endian)"
    )
    dimensions: int = number(1, 1, about="if given, the width that the model has; others it cannot make")
    pooling: str | None = Field(
        None,
        description="mean, first, max, last, or own: what the model was trained with; the run's if not given",
    )
    normalize: bool | None = Field(
        None, description="make the length of each vector 1; as the run does if not given"
    )
    prompt: str = Field(
        "",
        description="what stands before each text: a name of the run's prompts, or a text; the run's if not given",
    )
    truncate: bool = Field(
        False, description="read the beginning of a text that is too long, instead of refusing it"
    )


class FillBody(Body):
    """POST /v1/fill-mask."""

    input: Texts = Field(description="texts with a mask each, written <mask> or [MASK]")
    top_k: int = number(5, 1, most=100, about="how many tokens are told for a mask")


class ClassifyBody(Body):
    """POST /v1/classify."""

    input: Pairs = Field(description="texts, or pairs of texts")
    truncate: bool = Field(
        False, description="read the beginning of a text that is too long, instead of refusing it"
    )


class ScoreBody(Body):
    """POST /v1/score."""

    input: Texts = Field(description="texts that a language model judges, or sources")
    target: Texts = Field(["-"], description="translations of the sources, one each")


class TokenizeBody(Body):
    """POST /tokenize."""

    prompt: str = Field(description="a text")
    return_token_strs: bool = Field(False, description="tell the name of each token too")


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: Ids = Field(description="token ids")


B = TypeVar("B", bound=Body)


def read(kind: type[B], given: dict[str, Any], limits: Limits, strict: bool = False) -> tuple[B, list[str]]:
    """A checked body, and what of it has no meaning here; every mistake is a Refusal that names the field."""
    ignored = _unknown(kind, given, strict)
    try:
        body = kind.model_validate({name: given[name] for name in given if name in kind.model_fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Refusal(
            400,
            "invalid_value",
            "; ".join([*str(explain(error)).splitlines(), *ignored])[:1000],
            path(first["loc"][:1]),
        ) from None
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and name in body.model_fields_set:
            most = getattr(limits, str(extra["limit"]))
            if getattr(body, name) > most:
                raise Refusal(
                    400,
                    "invalid_value",
                    f"{name}: {getattr(body, name)} is out of range: this service allows {most} at most",
                    name,
                )
    check_size(body, limits)
    return body, ignored


def _unknown(kind: type[Body], given: dict[str, Any], strict: bool) -> list[str]:
    """What is said of fields that have no meaning here; one that would have changed the answer is refused."""
    for name in sorted(given.keys() & NEUTRAL.keys() - kind.model_fields.keys()):
        if not any(type(given[name]) is not bool and given[name] == value for value in NEUTRAL[name]):
            raise Refusal(
                400,
                "unsupported_parameter",
                f"{name} is not supported by this service; {'give structured_outputs' if 'guided_' in name else 'leave it out'}",
                name,
            )
    told = []
    unknown = given.keys() - kind.model_fields.keys() - NEUTRAL.keys()
    # where a field is missing, one that is only a little like another was meant for it
    lacks = any(field.is_required() and key not in given for key, field in kind.model_fields.items())
    for name in nsmallest(TOLD, unknown - HARMLESS if strict else unknown):
        hint = "" if name in HARMLESS else nearest(name, kind.model_fields, 0.75 if lacks else 0.5)
        if strict:
            raise Refusal(400, "unknown_parameter", f"unknown field {show(name)}{hint}", name[:64])
        told.append(f"field {show(name)} is ignored{hint}")
    return told
