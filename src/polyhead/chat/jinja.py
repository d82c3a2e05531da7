"""The chat format of a Jinja template, for checkpoints whose template is none of the known formats."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from polyhead.chat.base import (
    EOS,
    ChatPiece,
    Message,
    ToolCall,
    ToolChoice,
    build_tool_choice,
    check_messages,
    merge_system,
    no_tools_error,
)
from polyhead.chat.formats import CallStyle, to_fields
from polyhead.chat.reasoning import ReasoningSyntax
from polyhead.chat.sandbox.client import Rendering, TemplateError, render_template
from polyhead.chat.sandbox.placeholders import TOKEN_ROLES
from polyhead.chat.tool_calls import ToolCallSyntax
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

_QUESTION, _ANSWER = Message("user", "zqxquestion"), Message("assistant", "zqxanswer")
_PROBE_CALLS = (
    ToolCall("zqxfirst", '{"zqxkey": "zqxvalue"}', "zqxcall01"),
    ToolCall("zqxsecond", '{"zqxkey": "zqxother"}', "zqxcall02"),
)
_PROBE_TOOLS = build_tool_choice(
    [
        {
            "type": "function",
            "function": {
                "name": call.name,
                "description": "zqxdescription",
                "parameters": {"type": "object", "properties": {"zqxkey": {"type": "string"}}},
            },
        }
        for call in _PROBE_CALLS
    ]
)
_ROLE_CHARACTERS = {role: chr(0xE0A0 + i) for i, role in enumerate(TOKEN_ROLES)}
# what follows an answer: a text of the form of a special token, or the token of a role
_END = re.compile(rf"\s*(?:<[^<>\n]*>|\[[^\[\]\n]*\]|[{''.join(_ROLE_CHARACTERS.values())}])")

# marks before and after a call, or a list of calls
_CALL_MARKS = {
    "<tool_call>": "</tool_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<function_call>": "</function_call>",
    "[TOOL_CALLS]": "",
}
_OPENING = re.compile(rf"({'|'.join(map(re.escape, _CALL_MARKS))})\s*+(?P<list>\[?)\s*+\Z")
_raw_decode = json.JSONDecoder().raw_decode
# the most common first
CALL_STYLES = [CallStyle(text, null) for null in (False, True) for text in (False, True)]


@CHAT.register("jinja")
class JinjaChat:
    """The text that a checkpoint's own template writes, rendered by sandboxed Jinja as in transformers.

    The template is a program: it runs in a process of its own, without files and with bounds on time, memory
    and output. What a person writes never becomes a special token: placeholders stand for it while the
    template is rendered. Tool calls are parsed if they are JSON with known marks. Where the template has no
    place for a system message, it is merged as in the formats without one.

    Equation: template(messages, tools, add_generation_prompt)
    Paper: Hugging Face, chat templates, 2023
    When: the template of a checkpoint is none of the other formats
    Options:
      template: text of the Jinja template; --chat-template FILE reads it from a file
    """

    def __init__(self, *, template: str) -> None:
        self.template = template
        self._variables: dict[str, Any] = {}  # of the template, in addition to the conversation
        text = self._write([_QUESTION], True).text
        if _QUESTION.content not in text:
            raise UserError("the chat template does not write the message of the user")

    @cached_property
    def end_tokens(self) -> tuple[ChatPiece, ...]:
        """The token after the last answer, or else after one before a question, if there is one, and EOS."""
        for conversation in ([_QUESTION, _ANSWER], [_QUESTION, _ANSWER, _QUESTION]):
            with suppress(TemplateError):
                rendering = self._write(conversation)
                text = _plain(rendering).replace(rendering.placeholders.answer_end, "")
                if mark := _END.match(text, text.rindex(_ANSWER.content) + len(_ANSWER.content)):
                    token = mark[0].strip()
                    return (EOS,) if token in _ROLE_CHARACTERS.values() else (ChatPiece(token, "mark"), EOS)
        return (EOS,)

    @cached_property
    def trim_content(self) -> bool:
        """Whether the template trims answers."""
        spaced = _ANSWER._replace(content=f" {_ANSWER.content} ")
        return self._write([_QUESTION, spaced]).text == self._write([_QUESTION, _ANSWER]).text

    @cached_property
    def reasoning(self) -> ReasoningSyntax | None:
        """The markers of reasoning, if the template has them."""
        syntax = ReasoningSyntax()
        if syntax.end not in self.template:
            return None
        prompt = _plain(self._write([_QUESTION], True))
        return syntax._replace(is_open=prompt.rstrip().endswith(syntax.start))

    @cached_property
    def tool_syntax(self) -> ToolCallSyntax | None:
        """How the template writes calls; None if their marks are unknown."""
        if self._call_style is None:
            return None
        prompt = _plain(self._write([_QUESTION], True, _PROBE_TOOLS))
        for calls in (_PROBE_CALLS, _PROBE_CALLS[:1]):
            try:
                text = _plain(self._write([_QUESTION, Message("assistant", "", calls)], tools=_PROBE_TOOLS))
            except TemplateError:
                continue
            return find_tool_syntax(text, [call.name for call in calls], prompt)
        return None

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """Render the conversation as pieces; answers are marked if the conversation is complete."""
        check_messages(messages, add_generation_prompt, allow_tool_calls=self._call_style is not None)
        if tools.required_tools and self.tool_syntax is None:
            raise UserError(
                "a call cannot be required: the marks of tool calls in this chat template are unknown"
            )
        messages, rendering = self._write_all(messages, add_generation_prompt, tools)
        text = _plain(rendering)
        is_written = all(name in text for name in tools.tool_names)
        # a name may be that of a call only
        if not is_written or (
            tools.all_tools and text == _plain(self._write(messages, add_generation_prompt))
        ):
            raise no_tools_error(f"tools are given ({', '.join(tools.tool_names)})")
        spans = [] if add_generation_prompt else list(self._answer_spans(messages, rendering, tools))
        return list(_split_pieces(rendering, spans))

    def render_without_reasoning(self, messages: Sequence[Message], tools: ToolChoice) -> list[ChatPiece]:
        """Render the prompt for an answer without reasoning, in the way of the template if it has one."""
        if self.reasoning is None or "enable_thinking" in self.template:
            return self._without_thinking.render(messages, True, tools)
        return [*self.render(messages, True, tools), *self.reasoning.empty_pieces()]

    @cached_property
    def _without_thinking(self) -> JinjaChat:
        """The format with the variable of Qwen 3's template that asks for no reasoning."""
        other = copy.copy(self)
        other._variables = {"enable_thinking": False}
        return other

    def render_exactly(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice
    ) -> list[ChatPiece]:
        """What the template writes for a conversation, without checks; TemplateError if it refuses it."""
        return list(_split_pieces(self._write(messages, add_generation_prompt, tools), []))

    def _write_all(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice
    ) -> tuple[Sequence[Message], Rendering]:
        """The conversation as it is written, with its system messages where the template has a place."""
        merged = merge_system(messages)
        without_system = _move_system(merged)
        refusal: TemplateError | None = None
        for candidate in (messages, merged, without_system):
            try:
                rendering = self._write(candidate, add_generation_prompt, tools)
            except TemplateError as error:
                refusal = refusal or error
                continue
            text = rendering.placeholders.restore(rendering.text)
            if all(m.content.strip() in text for m in candidate if m.role == "system"):
                return candidate, rendering
        raise refusal or UserError("the chat template does not write the system message")

    def _write(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        tools: ToolChoice = ToolChoice(),
        style: CallStyle | None = None,
    ) -> Rendering:
        """Render the template."""
        if any(message.tool_calls for message in messages):
            style = style or self._call_style
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        values = {
            "messages": [to_fields(message, style or CallStyle(), names) for message in messages],
            "tools": [tool.definition for tool in tools.all_tools] or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._variables,
        }
        return render_template(self.template, values)

    @cached_property
    def _call_style(self) -> CallStyle | None:
        """The form of tool calls that the template expects; None if it writes none."""
        messages = [_QUESTION, Message("assistant", "", _PROBE_CALLS[:1])]
        texts: dict[CallStyle, str] = {}
        for style in CALL_STYLES:
            try:
                rendering = self._write(messages, False, _PROBE_TOOLS, style)
            except TemplateError:
                continue
            text = _plain(rendering)
            texts[style] = text[_common_len(text, self._tools_prompt) :]
        return find_call_style(texts, _PROBE_CALLS[0])

    @cached_property
    def _tools_prompt(self) -> str:
        """The probe's question with its tools, whose text is not that of a call."""
        return _plain(self._write([_QUESTION], False, _PROBE_TOOLS))

    def _answer_spans(
        self, messages: Sequence[Message], rendering: Rendering, tools: ToolChoice
    ) -> Iterator[tuple[int, int]]:
        """Where the answers of a complete conversation are, with their end tokens."""
        if rendering.placeholders.answer_start in rendering.text:
            return  # the template marks them itself
        text = _plain(rendering)
        for i, message in enumerate(messages):
            if message.role != "assistant":
                continue
            # where the text differs if the answer is another one
            other = message._replace(content=_ANSWER.content)
            if message.tool_calls:
                calls = tuple(call._replace(name=_ANSWER.content) for call in message.tool_calls)
                other = message._replace(tool_calls=calls)
            changed = _plain(self._write([*messages[:i], other, *messages[i + 1 :]], False, tools))
            before, found, _ = changed.partition(_ANSWER.content)
            after = changed.rpartition(_ANSWER.content)[2]
            if not found:
                raise UserError(
                    f"the chat template does not write the answer of message {i}: choose another format"
                )
            start = _common_len(text, before)
            end = len(text) - _common_len(text[start:][::-1], after[::-1])
            prompt = _plain(self._write(messages[:i], True, tools))
            if text.startswith(prompt) and len(prompt) <= start:
                start = len(prompt)
            elif message.tool_calls:  # where the text differs if the answer calls nothing
                start = _common_len(text, _plain(self._write([*messages[:i], _ANSWER], False, tools)))
            limit = len(text)
            if message.tool_calls and i + 1 < len(
                messages
            ):  # where the text differs if the next message does
                following = messages[i + 1]._replace(content=f"{_ANSWER.content} {messages[i + 1].content}")
                changed = _plain(
                    self._write([*messages[: i + 1], following, *messages[i + 2 :]], False, tools)
                )
                limit = _common_len(text, changed)
            yield start, self._find_end(text, end, limit, message)

    def _find_end(self, text: str, start: int, limit: int, message: Message) -> int:
        """Where an answer ends: its text ends at ``start``, but if it calls functions up to ``limit``."""
        names = [_ROLE_CHARACTERS.get(piece.text, piece.text) for piece in self.end_tokens]
        end = re.compile(rf"\s*(?:{'|'.join(map(re.escape, names))})")
        if mark := (end.search if message.tool_calls else end.match)(text, start, limit):
            return mark.end()
        if not message.tool_calls:
            return start
        if limit < len(text):
            raise UserError("the chat template writes no end token after tool calls: choose another format")
        return len(text.rstrip())


def _move_system(messages: Sequence[Message]) -> Sequence[Message]:
    """The conversation with the system message in the first user message, for templates without one."""
    if len(messages) < 2 or messages[0].role != "system" or messages[1].role != "user":
        return messages
    system, question, *rest = messages
    return [question._replace(content=f"{system.content}\n\n{question.content}"), *rest]


def _split_pieces(rendering: Rendering, spans: Sequence[tuple[int, int]]) -> Iterator[ChatPiece]:
    """The pieces of a rendered text: what a person wrote is text, all else may be special tokens."""
    placeholders = rendering.placeholders
    roles = {character: role for role, character in placeholders.roles.items()}
    marks = {placeholders.answer_start: True, placeholders.answer_end: False}
    spans = [(start, end) for start, end in spans if end > start]  # a blank answer may have no text
    bounds = {end: False for _, end in spans} | {start: True for start, _ in spans}
    is_assistant, run, run_is_text = False, "", False

    for i, character in enumerate([*rendering.text, ""]):
        is_text = character in placeholders.originals
        changes = i in bounds or character in marks or character in roles or not character
        if run and (changes or is_text != run_is_text):
            yield ChatPiece(run, "text" if run_is_text else "template", is_assistant)
            run = ""
        is_assistant = marks.get(character, bounds.get(i, is_assistant))
        run_is_text = is_text
        if character in roles:
            yield ChatPiece(roles[character], "role", is_assistant)
        elif character not in marks:
            run += placeholders.originals.get(character, character)


def _plain(rendering: Rendering) -> str:
    """A rendered text for comparisons, of the same length: with one character for the token of each role."""
    placeholders = rendering.placeholders
    roles = {ord(character): _ROLE_CHARACTERS[role] for role, character in placeholders.roles.items()}
    return str(placeholders.restore(rendering.text).translate(roles))


def _common_len(a: str, b: str) -> int:
    """The length of the longest common prefix of two texts."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def find_call_style(texts: Mapping[CallStyle, str], call: ToolCall) -> CallStyle | None:
    """The style in which a template writes this call, by what it wrote in each: preferably as JSON."""
    ((key, value),) = json.loads(call.arguments).items()
    patterns = (rf'(?s){call.name}.*"{key}"\s*:\s*"{value}"', rf"(?s){call.name}.*{key}.*{value}")
    return next((style for p in patterns for style, text in texts.items() if re.search(p, text)), None)


def find_tool_syntax(text: str, names: Sequence[str], prompt: str) -> ToolCallSyntax | None:
    """The syntax of tool calls in a conversation that ends with a call of each name.

    None if the calls are not JSON with known marks. ``prompt`` is the conversation up to the answer.
    """
    calls = [found for name in names if (found := _find_call(text, name))]
    if len(calls) < len(names):
        return None
    (value, start, first_end), (_, last_start, stop) = calls[0], calls[-1]
    before, between, after = text[:start], text[first_end:last_start], text[stop:]
    syntax = ToolCallSyntax(
        arguments_key="parameters" if "parameters" in value else "arguments",
        parallel_tool_calls=len(calls) > 1,
    )
    mark = _OPENING.search(before)
    if mark is None:
        return syntax._replace(parallel_tool_calls=False) if before == prompt else None
    opening, close_mark = mark[0], _CALL_MARKS.get(mark[1], "")
    if mark["list"]:
        closing = re.match(rf"\s*\](?:\s*{re.escape(close_mark)})?", after)
        separator = between if len(calls) > 1 else ", "
        return (
            syntax._replace(list_start=opening, separator=separator, list_end=closing[0]) if closing else None
        )
    if not close_mark or close_mark not in after:
        return None
    closing_text = after[: after.index(close_mark) + len(close_mark)]
    separator = between.removeprefix(closing_text).removesuffix(opening) if len(calls) > 1 else "\n"
    return syntax._replace(call_start=opening, call_end=closing_text, separator=separator)


def _find_call(text: str, name: str) -> tuple[dict[str, Any], int, int] | None:
    """The last JSON object in a text that is a call of a function, and where it is."""
    for start in reversed([match.start() for match in re.finditer(r"\{", text)]):
        try:
            value, end = _raw_decode(text, start)
        except ValueError:
            continue
        if (
            isinstance(value, dict)
            and value.get("name") == name
            and {"arguments", "parameters"} & value.keys()
        ):
            return value, start, end
    return None
