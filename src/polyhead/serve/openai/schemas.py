"""Request schemas, one field per line; validation and /openapi.json are generated from them."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import BaseMetadata
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from polyhead.chat.base import drop_nulls
from polyhead.config.generation_config import MAX_TOKEN_ID, SETTING_USES, GenerationConfig, strip_scope
from polyhead.serve.openai.schema_fields import (
    DEFAULT_FROM_RUN,
    MESSAGE_OVERHEAD,
    Documents,
    Ids,
    LayerList,
    MessageList,
    ObjectFields,
    Pairs,
    Prompts,
    Stops,
    StopTokenIds,
    TermTable,
    TextList,
    ToolChoiceField,
    ToolList,
    allow_nulls,
    int_field,
)

MAX_TOKENS = "maximum number of output tokens; reduced to what the model and the service can generate"


class JsonObject(BaseModel):
    """An object of a request. A field that is null counts as absent."""

    model_config = ConfigDict(
        strict=True, extra="allow", protected_namespaces=(), json_schema_extra=allow_nulls
    )
    other_fields: ClassVar[ObjectFields] = ObjectFields({})
    """Fields that are not declared: without effect, or not supported."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        return drop_nulls(fields) if isinstance(fields, dict) else fields


class RequestBody(JsonObject):
    """Fields of every request."""

    batch_limit: ClassVar[str] = "max_batch"  # the attribute of Limits that bounds the number of texts

    model: str = Field("", description="id of the model, as listed by GET /v1/models; this server has one")


class StreamOptions(JsonObject):
    """Options of a stream."""

    other_fields = ObjectFields(
        {},
        client_names=frozenset(["include_obfuscation"]),
        neutral_values={"continuous_usage_stats": (False,)},
    )

    include_usage: bool = Field(False, description="send the token counts before the end of the stream")


class JsonSchemaFormat(JsonObject):
    """A JSON Schema, in the format of OpenAI's API."""

    other_fields = ObjectFields({}, client_names=frozenset(["name", "strict", "description"]))

    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema of the output")


class ResponseFormat(JsonObject):
    """Output format."""

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="any text, a JSON object, or JSON that matches a schema"
    )
    json_schema: JsonSchemaFormat | None = Field(None, description="schema and its name")


class StructuredOutputs(JsonObject):
    """Constraint on the output: exactly one of these."""

    other_fields = ObjectFields(
        {},
        neutral_values={
            "structural_tag": (), "whitespace_pattern": (), **dict.fromkeys(("json_object",
            "disable_fallback", "disable_any_whitespace", "disable_additional_properties"), (False,)),
        },
    )  # fmt: skip

    regex: str | None = Field(None, description="regular expression that matches the whole output")
    choice: list[str] | None = Field(None, description="list of texts, one of which is the output")
    json_: dict[str, Any] | None = Field(None, alias="json", description="JSON Schema of the output")
    grammar: str | None = Field(None, description="context-free grammar, in Lark's format or GBNF")


class RandomizedRequest(RequestBody):
    """Number of outputs, and the random seed."""

    n: int = int_field(1, 1, "max_n", description="number of outputs per text", is_fixed=True)
    seed: int = int_field(
        -1, -1, maximum=2**63 - 1, description="random seed; the same seed gives the same text; -1: random"
    )


def _setting_fields() -> dict[str, Any]:
    """The fields of requests that are settings of GenerationConfig, by name, for ``create_model``."""
    fields: dict[str, Any] = {}
    for name, use in SETTING_USES.items():
        if (http := use.http) is None:
            continue
        setting = GenerationConfig.model_fields[name]
        limits = {**use.limits, **http.limits}
        if setting.annotation is int:
            limits.setdefault("le", MAX_TOKEN_ID)
        extra: dict[str, Any] = {"limit": http.service_limit} if http.service_limit else {}
        extra |= {} if http.has_default else {DEFAULT_FROM_RUN: True}
        validators = [one for one in setting.metadata if not isinstance(one, BaseMetadata)]
        options: dict[str, Any] = limits | ({"allow_inf_nan": False} if setting.annotation is float else {})
        field = Field(
            setting.get_default(call_default_factory=True),
            description=http.description or strip_scope(setting.description or ""),
            json_schema_extra=extra,
            **options,
        )
        annotation = Annotated[(setting.annotation, *validators)] if validators else setting.annotation
        fields[http.name or name] = annotation, field
    return fields


class SamplingParams(create_model("Settings", __base__=RandomizedRequest, **_setting_fields())):  # type: ignore[misc]
    """Sampling and beam search parameters; a missing field has the default of the run."""

    max_tokens: int = int_field(1, 1, description=MAX_TOKENS)
    stop: Stops = Field([], description="stop strings, which end an output and are not part of it")
    stop_token_ids: StopTokenIds = Field(
        [], description="ids of tokens that end an output and are not part of its text"
    )
    ignore_eos: bool = Field(
        False, description="sampled text: continue after the model's end token, up to max_tokens"
    )
    stream: bool = Field(False, description="stream the text as server-sent events")
    stream_options: StreamOptions = Field(StreamOptions(), description="options of the stream")
    truncate: bool = Field(
        False, description="truncate a text that is longer than the model's maximum, instead of rejecting it"
    )
    response_format: ResponseFormat | None = Field(
        None, description="language models: any text, or only JSON"
    )
    structured_outputs: StructuredOutputs | None = Field(
        None, description="language models: other constraints on the output"
    )
    grammar: str | None = Field(
        None, description="language models: context-free grammar of the output, in Lark's format or GBNF"
    )


class ChatTemplateKwargs(JsonObject):
    """Settings of the chat format."""

    model_config = ConfigDict(extra="forbid")

    enable_thinking: bool | None = Field(
        None, description="false: no reasoning before the answer; true: as the model decides"
    )


class CompletionBody(SamplingParams):
    """POST /v1/completions."""

    prompt: Prompts = Field(description="prompt to continue; source text for an encoder-decoder")
    max_tokens: int = int_field(1, 0, description=f"{MAX_TOKENS}; 0 only with echo")
    logprobs: int = int_field(
        0,
        0,
        maximum=20,
        description="return the log-probabilities of the tokens, and of this number of alternatives",
    )
    parse_special: bool = Field(
        False,
        description="language models: names of special tokens in a prompt are these tokens, as for fill in "
        "the middle; default: they are text",
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        le=MAX_TOKEN_ID,
        description="language models: keep only this number of tokens at the end of the prompt; -1: as many "
        "as the model can read",
    )
    echo: bool = Field(
        False, description="include the prompt at the start of each output and of its logprobs"
    )


class ChatBody(SamplingParams):
    """POST /v1/chat/completions."""

    messages: MessageList = Field(
        description="messages of the conversation; the last one is answered, or continued if it is one of "
        "the assistant; each counts "
        f"{MESSAGE_OVERHEAD} characters in addition to its own"
    )
    continue_final_message: bool | None = Field(
        None, description="true: require a last message of the assistant, which is continued"
    )
    add_generation_prompt: bool | None = Field(
        None, description="false: the same; true: require a last message that is answered"
    )
    chat_template_kwargs: ChatTemplateKwargs = Field(
        ChatTemplateKwargs(), description="settings of the chat format"
    )
    max_completion_tokens: int = int_field(1, 1, description="alias of max_tokens")
    logprobs: bool = Field(False, description="return the log-probability of each output token")
    top_logprobs: int = int_field(
        0,
        0,
        maximum=20,
        description="with logprobs: number of alternatives returned for each token",
        is_fixed=True,
    )
    tools: ToolList = Field((), description="functions that the answer may call")
    tool_choice: ToolChoiceField = Field(
        "auto", description="whether a function is called; auto: the model decides"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: at most one function call")

    @property
    def thinks(self) -> bool:
        """Whether the model may reason before its answer."""
        return self.chat_template_kwargs.enable_thinking is not False

    @cached_property
    def num_chars(self) -> int:
        """Characters of all messages and calls, and ``MESSAGE_OVERHEAD`` for each."""
        texts = [message.content + message.reasoning for message in self.messages]
        texts += [call.name + call.arguments for message in self.messages for call in message.tool_calls]
        return sum(len(text) + MESSAGE_OVERHEAD for text in texts)


class TranslationBody(SamplingParams):
    """POST /v1/translations."""

    input: TextList = Field(description="texts to translate")
    format: Literal["text", "html", "markdown", "srt", "xliff"] | None = Field(
        None,
        description="each text is a document of this format: its sentences are translated, the rest stays",
    )
    source: str = Field("", description="source language of a multilingual model")
    target: str = Field("", description="target language of a multilingual model")
    terminology: TermTable = Field(
        {},
        description='required translations of words of the input, e.g. {"dog": "Hund"}; of several '
        "alternatives, one",
    )
    return_attention: bool = Field(
        False, description="return the attention of the decoder to the source for each token"
    )
    return_scores: bool = Field(
        True,
        description="return scores: log P / length ** length_penalty for beam search, log P for sampled "
        "text; and confidence, exp(log P / length)",
    )
    return_alignments: bool = Field(
        False,
        description="return the aligned words: [number in the input, number in the translation], from 0; "
        "words are between white space, in scripts without spaces characters",
    )
    return_token_scores: bool = Field(
        False, description="return the tokens of the translations with their log-probabilities"
    )


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings."""

    batch_limit: ClassVar[str] = "max_embeddings"

    input: Prompts = Field(description="texts, or token ids of texts; one vector each")
    encoding_format: str = Field(
        "float", pattern="^(float|base64)$", description="float or base64 (float32, little endian)"
    )
    dimensions: int = int_field(
        1, 1, description="width of the vectors: only the first dimensions of each; default: all"
    )
    pooling: str | None = Field(
        None,
        description="pooling: mean, first, max, last, or own, which the model was trained with; "
        "default: from the run",
    )
    normalize: bool | None = Field(
        None, description="normalize each vector to length 1; default: from the run"
    )
    prompt: str = Field(
        "",
        description="prompt put before each text: a name of the run's prompts, or a text; default: from "
        "the run",
    )
    truncate: bool = Field(False, description="truncate a text that is too long, instead of rejecting it")
    tokens: bool = Field(False, description="return a vector for each token of a text, and the tokens")
    layers: LayerList = Field(
        [-1],
        description='return an embedding for each of these layers, or "all": 0 is the token embeddings, -1 '
        "the last layer; default: the last layer only, without a list of layers",
    )


class FillBody(RequestBody):
    """POST /v1/fill-mask."""

    input: TextList = Field(description="texts with masks, written <mask> or [MASK]")
    top_k: int = int_field(5, 1, maximum=100, description="number of tokens returned per mask", is_fixed=True)


class ClassifyBody(RequestBody):
    """POST /v1/classify."""

    input: Pairs = Field(description="texts, or pairs of texts")
    truncate: bool = Field(False, description="truncate a text that is too long, instead of rejecting it")


class TagBody(RequestBody):
    """POST /v1/tag."""

    input: TextList = Field(description="texts of any length")


class AnswerBody(RequestBody):
    """POST /v1/answer."""

    question: str = Field(description="question that is answered with words of the context")
    context: str = Field(description="text of any length")


class RerankBody(RequestBody):
    """POST /v1/rerank."""

    batch_limit: ClassVar[str] = "max_embeddings"

    query: str = Field(description="text that the documents are compared with")
    documents: Documents = Field(description="texts, or objects with a text")
    top_n: int = int_field(
        1, 1, description="number of documents returned, the most relevant first; default: all", is_fixed=True
    )
    return_documents: bool = Field(True, description="return the text of each document")
    truncate: bool = Field(False, description="truncate a text that is too long, instead of rejecting it")


class ScoreBody(RequestBody):
    """POST /v1/score."""

    input: TextList = Field(description="texts to score with a language model, or source texts")
    target: TextList = Field(["-"], description="translations of the source texts, one each")


class ExplainBody(RequestBody):
    """A text to walk through the model, number by number, and a lever to pull."""

    text: str = Field(description="text, or source text of an encoder-decoder")
    target: str = Field(
        "",
        description="target of an encoder-decoder, or second text of a pair; default: the model's own output",
    )
    first: int = int_field(
        0, 0, description="first token, from 0, that is shown of a long text", is_fixed=True
    )
    n_shown: int = int_field(
        64, 1, maximum=64, description="tokens that are shown of each text; default: as many as are useful",
        is_fixed=True,
    )  # fmt: skip
    lever: str = Field("", description="name of a lever: what one setting of it changes is returned")
    setting: dict[str, Any] = Field({}, description="fields of the lever; a missing field has its default")
    attention: str = Field(
        "",
        description="path of the attention whose changed weights are returned; default: the one in which "
        "they change most",
    )


class TokenizeBody(RequestBody):
    """POST /tokenize."""

    prompt: str = Field(description="text to tokenize")
    return_token_strs: bool = Field(False, description="also return the tokens as strings")


class DetokenizeBody(RequestBody):
    """POST /detokenize."""

    tokens: Ids = Field(description="token ids")
