"""The chat formats of this package by name: each is the Jinja template of its name in ``templates/``.

The same template renders conversations here and is exported with a run. It is trusted, so unlike that of a
checkpoint it needs no process of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from polyhead.chat.base import EOS, ChatPiece, Message, PieceKind, ToolChoice, check_messages, merge_system
from polyhead.chat.reasoning import ReasoningSyntax
from polyhead.chat.sandbox.placeholders import Placeholders, choose_placeholders
from polyhead.chat.tool_calls import ToolCallSyntax
from polyhead.core.errors import UserError, format_value
from polyhead.core.registry import CHAT

if TYPE_CHECKING:
    from jinja2 import Template

_GENERATION_TAG = re.compile(r"{%- (end)?generation %}")  # around answers, with their end tokens
_EDGE_CHARS = "<["  # every special token of these templates starts with one
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class CallStyle(NamedTuple):
    """The fields of an assistant message with tool calls that a template expects."""

    arguments_as_text: bool = False  # JSON in a string, else an object
    null_content: bool = False  # a message without text has the content None, else ""


def to_fields(message: Message, style: CallStyle, call_names: Mapping[str, str]) -> dict[str, Any]:
    """A message as templates expect it; ``call_names`` are the functions of earlier calls by id."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["content"] = message.content or (None if style.null_content else "")
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if style.arguments_as_text else json.loads(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        name = call_names.get(message.tool_call_id)
        fields |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
        fields |= {"name": name} if name else {}
    return fields


class TemplateFormat:
    """A chat format that a template of this package writes."""

    name: ClassVar[str]
    tokens: ClassVar[tuple[str, ...]] = ()  # special tokens, which the vocabulary must have
    marks: ClassVar[tuple[str, ...]] = ()  # special tokens if the vocabulary has them, else plain text
    must_alternate: ClassVar[bool] = False  # user and assistant take turns
    merges_system: ClassVar[bool] = False  # there is a place for one system message only, the first
    end_tokens: tuple[ChatPiece, ...] = (EOS,)
    trim_content = False
    variables: Mapping[str, str | bool | None] = MappingProxyType({})  # of the template: options

    @property
    def template(self) -> str:
        """The template with its variables, for transformers' apply_chat_template and other programs.

        It has no ``generation`` tags, which not all programs know.
        """
        lines = (f"{{%- set {name} = {_to_literal(value)} %}}" for name, value in self.variables.items())
        return "\n".join([*lines, _GENERATION_TAG.sub("", _read_template(self.name))])

    def check_support(self, messages: Sequence[Message], tools: ToolChoice) -> None:
        """Raise UserError for a conversation that the template does not support."""

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """Render the conversation as pieces."""
        alternating_format = self.name if self.must_alternate else ""
        check_messages(messages, add_generation_prompt, alternating_format, hasattr(self, "tool_syntax"))
        self.check_support(messages, tools)
        messages = merge_system(messages) if self.merges_system else messages
        values = {
            **self.variables,
            "messages": [to_fields(message, CallStyle(arguments_as_text=True), {}) for message in messages],
            "tools": [tool.definition for tool in tools.all_tools],
            "add_generation_prompt": add_generation_prompt,
        }
        placeholders = choose_placeholders(values, edge_chars=_EDGE_CHARS)
        template = _compile_template(self.name, placeholders.block)
        return self._split_pieces(template.render(placeholders.protect(values)), placeholders)

    def _split_pieces(self, text: str, placeholders: Placeholders) -> list[ChatPiece]:
        """Split a rendered text at the special tokens that the template wrote and at the ends of answers."""
        kinds: dict[str, tuple[str, PieceKind]] = {token: (token, "token") for token in self.tokens}
        kinds |= {mark: (mark, "mark") for mark in self.marks}
        kinds |= {character: (role, "role") for role, character in placeholders.roles.items()}
        bounds = {placeholders.answer_start: True, placeholders.answer_end: False}
        pieces, is_assistant = list[ChatPiece](), False
        for part in re.split(f"({'|'.join(map(re.escape, [*kinds, *bounds]))})", text):
            if part in bounds:
                is_assistant = bounds[part]
            elif part in kinds:
                pieces.append(ChatPiece(*kinds[part], is_assistant))
            elif part:
                pieces.append(ChatPiece(placeholders.restore(part), "text", is_assistant))
        return pieces


@cache
def _read_template(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(f"{name}.jinja").read_text(encoding="utf-8").strip()


@lru_cache(64)
def _compile_template(name: str, block: int) -> Template:
    """A template that writes the special tokens of roles and the bounds of answers as placeholders."""
    from polyhead.chat.sandbox.environment import TemplateEnvironment  # imports jinja2

    environment = TemplateEnvironment()
    environment.placeholders = placeholders = Placeholders(block, _EDGE_CHARS)
    # conversations are checked before; a system message is written that the published template refuses
    environment.globals |= placeholders.roles | {"raise_exception": lambda message: ""}
    bounds = {None: placeholders.answer_start, "end": placeholders.answer_end}
    return environment.from_string(
        _GENERATION_TAG.sub(lambda tag: f"{{{{- '{bounds[tag[1]]}' }}}}", _read_template(name))
    )


def _to_literal(value: str | bool | None) -> str:
    """A value as Jinja writes it."""
    if isinstance(value, str):
        return "'" + "".join(_ESCAPES.get(c, c) for c in value) + "'"
    return json.dumps(value).replace("null", "none")


_ROLE_MARKS = ("<|system|>", "<|user|>", "<|assistant|>")


@CHAT.register("plain")
class PlainChat(TemplateFormat):
    """Each message as a document that starts with the name of its role: the default for models trained here.

    Every vocabulary has EOS, which separates documents, and no text can spell it.

    Equation: </s>User: question</s>Assistant: answer</s>
    When: a language model trained here is fine-tuned on conversations; the default format
    """

    name = "plain"
    trim_content = True


@CHAT.register("chatml")
class ChatML(TemplateFormat):
    """Each message between ``<|im_start|>`` and ``<|im_end|>``: Qwen, SmolLM and many others.

    With ``thinks``, answers before the last user message are rendered without the reasoning before
    ``</think>``, and answers after it with their reasoning, an empty one if they have none. Tool definitions
    come after the system message, calls between ``<tool_call>`` and ``</tool_call>``, and tool results in a
    user turn, as in Qwen 2.5 and 3.

    Equation: <|im_start|>role\\ncontent<|im_end|>\\n ...  <|im_start|>assistant\\n
    Paper: OpenAI, 2023; Bai et al., 2023
    When: the vocabulary has these tokens
    Options:
      system: default system message, for conversations without one
      bos: whether BOS comes first
      thinks: whether the model writes reasoning before its answer, as Qwen 3
    """

    name = "chatml"
    tokens = ("<|im_start|>", "<|im_end|>")
    marks = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    end_tokens = (ChatPiece("<|im_end|>", "token"), EOS)
    tool_syntax = ToolCallSyntax("<tool_call>\n", "\n</tool_call>", "\n")

    def __init__(self, *, system: str = "", bos: bool = False, thinks: bool = False) -> None:
        self.variables = {"system": system, "bos": bos, "thinks": thinks}
        self.reasoning = ReasoningSyntax() if thinks else None

    def render_without_reasoning(self, messages: Sequence[Message], tools: ToolChoice) -> list[ChatPiece]:
        """Render the prompt for an answer, after empty reasoning if the model reasons."""
        empty_reasoning = self.reasoning.empty_pieces() if self.reasoning else []
        return [*self.render(messages, True, tools), *empty_reasoning]


@CHAT.register("gemma")
class Gemma(TemplateFormat):
    """Each message between ``<start_of_turn>`` and ``<end_of_turn>``; the role of the assistant is "model".

    Equation: <bos>  <start_of_turn>user\\nquestion<end_of_turn>\\n
              <start_of_turn>model\\nanswer<end_of_turn>\\n
    Paper: Gemma Team, 2024
    When: Gemma and models derived from it
    Options:
      system: first: the system message comes before the first user message, as in Gemma 3; none: so it does,
        but the published template refuses it
    """

    name = "gemma"
    tokens = ("<start_of_turn>", "<end_of_turn>")
    must_alternate = merges_system = True
    end_tokens = (ChatPiece("<end_of_turn>", "token"), EOS)
    trim_content = True

    def __init__(self, *, system: Literal["first", "none"] = "first") -> None:
        self.variables = {"system": system}


@CHAT.register("llama2")
class Llama2(TemplateFormat):
    """User messages between ``[INST]`` and ``[/INST]`` (plain text), the system message in the first one.

    Equation: <s>[INST] <<SYS>>\\nsystem\\n<</SYS>>\\n\\nquestion [/INST] answer </s>
    Paper: Touvron et al., 2023
    When: Llama 2 and models derived from it
    """

    name = "llama2"
    must_alternate = merges_system = True
    trim_content = True


@CHAT.register("llama3")
class Llama3(TemplateFormat):
    """Each message under a header with its role, up to ``<|eot_id|>``.

    Tool definitions come before the first user message, as in Llama 3.1; an answer is either one tool call or
    text.

    Equation: <|begin_of_text|>  <|start_header_id|>role<|end_header_id|>\\n\\ncontent<|eot_id|> ...
    Paper: Grattafiori et al., 2024
    When: Llama 3, 3.1, 3.2 and models derived from them
    Options:
      header: text at the start of the system message, which is then always written; Llama 3.1 expects dates
        there
    """

    name = "llama3"
    tokens = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    # the second ends some calls
    end_tokens = (ChatPiece("<|eot_id|>", "token"), ChatPiece("<|eom_id|>", "mark"), EOS)
    trim_content = True
    tool_syntax = ToolCallSyntax(arguments_key="parameters", parallel_tool_calls=False)

    def __init__(self, *, header: str = "") -> None:
        self.variables = {"header": header}

    def check_support(self, messages: Sequence[Message], tools: ToolChoice) -> None:
        if tools.all_tools and next(m.role for m in messages if m.role != "system") != "user":
            raise UserError(
                "this chat format writes tools into the first message, which must have the role 'user'"
            )
        max_calls = max(len(message.tool_calls) for message in messages)
        if max_calls > 1:
            raise UserError(f"this chat format supports one call per message; a message has {max_calls}")


class MistralStyle(NamedTuple):
    """Whitespace around questions and answers."""

    inst_prefix: str
    question_prefix: str  # between [INST] and the question
    question_suffix: str  # between the question and [/INST]
    answer_prefix: str  # before an answer
    tools_prefix: str | None = None  # after a tool marker; None: no tools in this style
    trims: bool = False  # whether answers are trimmed


STYLES = {
    "first": MistralStyle("", " ", " ", ""),
    "v1": MistralStyle(" ", " ", " ", " "),
    "v3": MistralStyle("", " ", "", " ", " ", trims=True),
    "tekken": MistralStyle("", "", "", "", ""),
}


@CHAT.register("mistral")
class Mistral(TemplateFormat):
    """User messages between ``[INST]`` and ``[/INST]``; the system message precedes the first or last one.

    The markers are special tokens if the vocabulary has them (since v3), else plain text. Since v3 tool
    definitions come before the last user message; an answer is either tool calls or text, and every call has
    an id of nine letters or digits.

    Equation: <s>[INST] question[/INST] answer</s>
    Paper: Jiang et al., 2023
    When: Mistral's instruct models and models derived from them
    Options:
      style: first: Mistral 0.1, Mixtral; v1: Mistral 0.2 and the templates of 2024; v3: Mistral 0.3; tekken:
        Nemo
      system: the user message that the system message precedes: first or last; none: the first, but the
        published template refuses a system message
    """

    name = "mistral"
    marks = (
        "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    )  # fmt: skip
    must_alternate = merges_system = True
    trim_content = True
    tool_syntax = ToolCallSyntax(list_start="[TOOL_CALLS][", separator=", ", list_end="]")

    def __init__(
        self,
        *,
        style: Literal["first", "v1", "v3", "tekken"] = "v3",
        system: Literal["first", "last", "none"] = "last",
    ) -> None:
        self.style = style
        self.variables = {**STYLES[style]._asdict(), "system": system}
        self.tool_syntax = self.tool_syntax._replace(
            list_start=f"[TOOL_CALLS]{STYLES[style].tools_prefix or ''}["
        )

    def check_support(self, messages: Sequence[Message], tools: ToolChoice) -> None:
        has_tools = bool(tools.all_tools) or any(message.tool_calls for message in messages)
        if has_tools and STYLES[self.style].tools_prefix is None:
            raise UserError(
                f"the format 'mistral' does not support tools in the style {self.style!r}; v3 and tekken do"
            )
        for message in messages:
            result_ids = [message.tool_call_id] if message.role == "tool" else []
            for call_id in (*(call.id for call in message.tool_calls), *result_ids):
                if not re.fullmatch("[A-Za-z0-9]{9}", call_id):
                    raise UserError(
                        f"the id {format_value(call_id)} of a call must be nine letters or digits in the "
                        "format 'mistral'"
                    )


@CHAT.register("phi3")
class Phi3(TemplateFormat):
    """Each message after a special token of its role, up to ``<|end|>``.

    Equation: <|user|>\\nquestion<|end|>\\n<|assistant|>\\nanswer<|end|>\\n
    Paper: Abdin et al., 2024
    When: Phi-3, Phi-3.5 and models derived from them
    Options:
      bos: whether BOS comes first, as in the first release; else EOS ends the conversation
    """

    name = "phi3"
    tokens = (*_ROLE_MARKS, "<|end|>")
    end_tokens = (ChatPiece("<|end|>", "token"), EOS)

    def __init__(self, *, bos: bool = False) -> None:
        self.variables = {"bos": bos}


@CHAT.register("tulu")
class Tulu(TemplateFormat):
    """Each message under a line with its role, and EOS after each answer: Tülu, OLMo 2 and others.

    Like ``zephyr``, but only assistant messages end with EOS.

    Equation: <|user|>\\nquestion\\n<|assistant|>\\nanswer</s>\\n
    Paper: Wang et al., 2023; Lambert et al., 2024
    When: the instruct models of OLMo 2, and models trained with open-instruct
    Options:
      bos: whether BOS comes first, as in OLMo 2
    """

    name = "tulu"
    marks = _ROLE_MARKS

    def __init__(self, *, bos: bool = False) -> None:
        self.variables = {"bos": bos}


@CHAT.register("zephyr")
class Zephyr(TemplateFormat):
    """Each message under a line with its role, up to EOS: Zephyr, TinyLlama and others.

    The role markers are special tokens if the vocabulary has them, else plain text.

    Equation: <|user|>\\nquestion</s>\\n<|assistant|>\\nanswer</s>\\n
    Paper: Tunstall et al., 2023
    When: models trained with the alignment handbook
    """

    name = "zephyr"
    marks = _ROLE_MARKS
