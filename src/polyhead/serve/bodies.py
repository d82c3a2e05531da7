"""What requests may say: a field, its type and bounds a line, of which the checks and /openapi.json are made."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from polyhead.serve.fields import (
    BiasTable,
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
from polyhead.serve.items import Items, NamedChoice, NamedTools
from polyhead.serve.sizes import FRAME

LOG_PROBS = "message.output_text.logprobs"
INCLUDED = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "message.input_image.image_url",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
]  # fmt: skip
"""What OpenAI's clients may want told besides; here there is nothing but the first of them to tell."""


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
    """How text is drawn or searched for. What is not given is as the run was trained to be used, and so is null, but for whole numbers."""

    n: int = number(1, 1, "n", about="outputs of each text", fixed=True)
    seed: int = number(
        0, 0, most=2**63 - 1, about="the same seed gives the same text; at random if not given"
    )
    temperature: float = real(1.0, "below 1 safer, above 1 bolder, 0 the likeliest", ge=0, le=1e6)
    top_k: int = number(0, 0, about="only the k likeliest tokens; 0 is all")
    top_p: float = real(1.0, "only the likeliest tokens that have this probability together", gt=0, le=1)
    min_p: float = real(0.0, "only tokens at least this fraction as likely as the likeliest", ge=0, le=1)
    repetition_penalty: float = real(1.0, "above 1 against saying things again", gt=0, le=1e6)
    frequency_penalty: float = real(
        0.0, "taken from a token's logit for every time that the output has it", ge=-2, le=2
    )
    presence_penalty: float = real(0.0, "taken from a token's logit once the output has it", ge=-2, le=2)
    logit_bias: BiasTable = Field({}, description="added to the logits of tokens, by their ids")
    no_repeat_ngram_size: int = number(0, 0, about="no n-gram of this length comes twice; 0: no limit")
    beam_size: int = number(
        1, 1, "beams", about="draw nothing: the likeliest texts that so many hypotheses find"
    )
    length_penalty: float = real(1.0, "with beams: above 0 favours longer texts", ge=-50, le=50)
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

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # a bound that is null is a mistake: whoever sends it may think that there is none
        counts = {name for name, field in cls.model_fields.items() if field.annotation is int}
        return {name: value for name, value in fields.items() if value is not None or name in counts}


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
    top_logprobs: int = number(
        0, 0, most=20, about="with logprobs: and of so many others in its place", fixed=True
    )
    tools: ToolList = Field((), description="functions that the answer may call")
    tool_choice: ToolChoice = Field("auto", description="whether it calls one: auto leaves that to the model")
    parallel_tool_calls: bool | None = Field(None, description="false: it calls one at most")


class Shape(BaseModel):
    """What kind of text a response is."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="any text, a JSON object, or JSON by a schema"
    )
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="the JSON Schema")


class ResponseText(BaseModel):
    """What the text of a response looks like."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: Shape = Field(Shape(type="text"), description="its kind")


class ResponseBody(Drawing):
    """POST /v1/responses. A field that is null is as one that is not there, as OpenAI's clients may send any."""

    input: Items = Field(
        description=f"a text, or who has said what; the last is answered; each item counts {FRAME} characters besides its own"
    )
    instructions: str | None = Field(None, description="what the system says before the input")
    max_output_tokens: int = number(1, 1, "max_tokens", about="longest output, in tokens")
    text: ResponseText = Field(ResponseText(), description="what the output must look like")
    include: list[INCLUDED] = Field(
        [], description=f"{LOG_PROBS} tells the log-probability of each token said"
    )
    top_logprobs: int = number(
        0, 0, most=20, about="with them: and of so many others in its place", fixed=True
    )
    tools: NamedTools = Field((), description="functions that the answer may call")
    tool_choice: NamedChoice = Field(
        "auto", description="whether it calls one: auto leaves that to the model"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: it calls one at most")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: a conversation that is too long loses its oldest questions"
    )
    metadata: dict[str, Any] | None = Field(None, description="told again in the answer")

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value is not None}


class TranslationBody(Drawing):
    """POST /v1/translations."""

    input: Texts = Field(description="what is translated")
    source: str = Field("", description="its language, of models of many")
    target: str = Field("", description="the language of the translation, of models of many")
    terms: TermTable = Field(
        {}, description='what words of the input must become, as {"dog": "Hund"}; of several texts one'
    )
    return_attention: bool = Field(False, description="tell where the decoder looked, for each token")
    return_scores: bool = Field(
        True, description="tell what beams found by, log P / length ** length_penalty; of drawn text log P"
    )


class EmbeddingBody(Body):
    """POST /v1/embeddings."""

    input: Prompts = Field(description="texts, or the token ids of texts; a vector each")
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
    top_k: int = number(5, 1, most=100, about="how many tokens are told for a mask", fixed=True)


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
