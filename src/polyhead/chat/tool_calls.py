"""Tool calls in assistant output: syntax of a chat format, streaming parser, and enforcing grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import uuid4

from polyhead.chat.base import ChatFormat, ChatPiece, Message, Tool, ToolCall, ToolChoice, encode_arguments
from polyhead.core.choice import Choice
from polyhead.grammar.grammars import WHITESPACE_PATTERN

_ARGUMENT_KEYS = ("arguments", "parameters")
_CALL_SEPARATORS = re.compile(r"[\s;,]*")  # written between calls by some models
_raw_decode = json.JSONDecoder().raw_decode


class ToolCallSyntax(NamedTuple):
    """Syntax of tool calls in a chat format.

    With ``call_start`` each call is between two markers, and text may surround them; without it the calls are
    the whole answer, after an optional ``list_start``.
    """

    call_start: str = ""  # before each call
    call_end: str = ""  # after each call
    separator: str = ""
    list_start: str = ""  # before all calls
    list_end: str = ""
    arguments_key: str = "arguments"
    parallel_tool_calls: bool = True  # whether an answer may have more than one

    @property
    def start_marker(self) -> str:
        """Marker at the start of a call or of the list of calls; "" if there is none."""
        return (self.call_start or self.list_start.removesuffix("[")).strip()

    @property
    def markers(self) -> list[str]:
        """Markers that separate calls from text."""
        return [mark for mark in (self.start_marker, self.call_end.strip()) if mark]

    def build_grammar(self, tools: ToolChoice) -> Choice:
        """Grammar of an answer that calls a required tool, or several of them with parallel tool calls."""
        is_repeated = self.parallel_tool_calls and tools.parallel_tool_calls
        repetition = f" ({_quote(self.separator)} one)*" if is_repeated else ""
        lines = [
            f"start: {_quote(self.list_start)} one{repetition} {_quote(self.list_end)}",
            f"one: {_quote(self.call_start)} call {_quote(self.call_end)}",
            "call: " + " | ".join(f"f{i}" for i in range(len(tools.required_tools))),
            *(self._grammar_rule(i, tool) for i, tool in enumerate(tools.required_tools)),
        ]
        return Choice("grammar", lark="\n".join(lines) + "\n")

    def explain_error(self, error: str, tools: ToolChoice) -> str:
        """Rewrite a grammar error as a message about the tools.

        A line number in ``error`` is mapped to a tool: the grammar has three lines, then two for each tool.
        """
        reason = error.removeprefix("grammar 'grammar': ")
        if location := re.match(r"at (\d+)\(\d+\): ", reason):
            reason = f"{tools.required_tools[(int(location[1]) - 4) // 2].name}: {reason[location.end() :]}"
        return f"tools: cannot be used as a grammar: {reason}"

    def _grammar_rule(self, number: int, tool: Tool) -> str:
        """Grammar rules of one tool: arguments by its JSON Schema, everything else by the format."""
        head = f'{{"name": "{tool.name}", "{self.arguments_key}": '
        schema = json.dumps(
            {**tool.schema, "x-guidance": {"whitespace_pattern": WHITESPACE_PATTERN}}, ensure_ascii=False
        )
        return f'f{number}: {_quote(head)} a{number} "}}"\na{number}: %json {schema}'


@runtime_checkable
class ToolCallFormat(Protocol):
    """A chat format with tool definitions and tool calls."""

    @property
    def tool_syntax(self) -> ToolCallSyntax | None:
        """The syntax of calls; None if they cannot be parsed."""

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """Render a conversation as in ChatFormat; ``tools`` are those that the answer may call."""


def get_tool_syntax(format: ChatFormat) -> ToolCallSyntax | None:
    """The syntax of tool calls of a format; None if it has none."""
    return format.tool_syntax if isinstance(format, ToolCallFormat) else None


class ToolCallParser:
    """Streaming parser of tool calls: text is emitted as soon as it cannot belong to a call.

    Anything that is not a call of these tools stays text. If only one call is allowed, everything after it is
    dropped.
    """

    def __init__(
        self, syntax: ToolCallSyntax, tools: ToolChoice, new_id: Callable[[], str] = lambda: uuid4().hex[:9]
    ) -> None:
        self.syntax, self.tool_names, self._new_id = syntax, set(tools.tool_names), new_id
        self.max_calls = 2**31 if syntax.parallel_tool_calls and tools.parallel_tool_calls else 1
        self.pending_text = ""  # may belong to a call
        self.num_calls = 0
        self._only_blanks = True  # whether only whitespace has come since the beginning or the last call
        self._is_text = not self.tool_names  # whether all further input is text
        self._parse = self._parse_delimited if syntax.call_start else self._parse_answer

    def feed(self, text: str, is_last: bool = False) -> tuple[str, list[ToolCall]]:
        """Parse more output; return text and calls that are complete, with ``is_last`` all that remain."""
        if self._is_text or self.num_calls == self.max_calls:
            return (text if self._is_text else ""), []
        self.pending_text += text
        emitted, calls, has_more = "", list[ToolCall](), True
        while has_more:
            content, new_calls = self._parse(is_last)
            emitted, calls = emitted + content, calls + new_calls
            has_more = bool(new_calls and self.syntax.call_start) and self.num_calls < self.max_calls
        return emitted, calls

    def _parse_delimited(self, is_last: bool) -> tuple[str, list[ToolCall]]:
        """The text up to the next call between markers, and that call; whitespace-only text is dropped."""
        emitted, mark = "", self.syntax.start_marker
        while (at := self.pending_text.find(mark)) >= 0:
            call, end = self._parse_call(at + len(mark), is_last)
            if end < 0:  # incomplete
                break
            if call is None:  # the marker is text; what follows may be a call
                emitted += self._emit_text(end, True)
                continue
            rest = self.pending_text[end:]
            emitted += self._emit_text(len(self._text_before(at)))
            self.num_calls, self._only_blanks, self.pending_text = self.num_calls + 1, True, rest
            return emitted, [call]
        overlap = max(
            _overlap_len(self.pending_text, mark),
            _overlap_len(self.pending_text, self.syntax.separator + mark),
        )
        sure_len = (
            len(self._text_before(at)) if at >= 0 else len(self.pending_text) - (0 if is_last else overlap)
        )
        return emitted + self._emit_text(sure_len, is_last and not self.num_calls), []

    def _emit_text(self, size: int, keep_blanks: bool = False) -> str:
        """Emit ``size`` characters of the pending text.

        If there was only whitespace since the last call it stays pending, unless ``keep_blanks``.
        """
        text = self.pending_text[:size]
        if self._only_blanks and not text.strip() and not keep_blanks:
            return ""
        self._only_blanks = self._only_blanks and not text.strip()
        self.pending_text = self.pending_text[size:]
        return text

    def _text_before(self, start: int) -> str:
        """The pending text before a marker, without the separator."""
        return self.pending_text[:start].removesuffix(self.syntax.separator)

    def _parse_call(self, start: int, is_last: bool) -> tuple[ToolCall | None, int]:
        """Parse the call after a marker that ends at ``start``; return the call and its end.

        None and -1 if more output is needed; None and ``start`` if it is not a call.
        """
        close = self.syntax.call_end.strip()
        stop = self.pending_text.find(close, start)
        if stop < 0 and not is_last:
            return None, -1
        try:
            value, end = _raw_decode(self.pending_text, _skip_blanks(self.pending_text, start))
        except json.JSONDecodeError as error:
            # an end marker inside of a string does not count
            is_incomplete = error.msg.startswith("Unterminated string") or error.pos > stop
            return None, -1 if is_incomplete and not is_last else start
        except (ValueError, RecursionError):
            return None, start
        end = _skip_blanks(self.pending_text, end)
        if self.pending_text.startswith(close, end):
            end += len(close)
        elif not is_last and close.startswith(self.pending_text[end:]):
            return None, -1
        elif end < len(self.pending_text):
            return None, start
        call = self._to_tool_call(value)
        return call, start if call is None else end

    def _parse_answer(self, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Parse an answer that consists of calls only."""
        syntax, text = self.syntax, self.pending_text.strip()
        openings = (syntax.start_marker, "{", "[") if syntax.list_end else ("{",)
        if text and not any(text.startswith(opening) or opening.startswith(text) for opening in openings):
            self._is_text = True
        elif not is_last:
            return "", []
        calls = [] if self._is_text else self._parse_calls(text.removeprefix(syntax.start_marker))
        calls = calls[: self.max_calls]
        emitted, self.pending_text, self.num_calls = "" if calls else self.pending_text, "", len(calls)
        return emitted, calls

    def _parse_calls(self, text: str) -> list[ToolCall]:
        """The calls in a text that consists of calls; [] if it contains anything else."""
        all_calls, position = list[ToolCall](), 0
        while (position := _CALL_SEPARATORS.match(text, position).end()) < len(text):  # type: ignore[union-attr]
            try:
                value, position = _raw_decode(text, position)
            except (ValueError, RecursionError):
                return []
            calls = [self._to_tool_call(item) for item in (value if isinstance(value, list) else [value])]
            if None in calls:
                return []
            all_calls += [call for call in calls if call is not None]
        return all_calls

    def _to_tool_call(self, value: Any) -> ToolCall | None:
        """A JSON value as a call; None if it is not a call of a known tool."""
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self.tool_names:
            return None
        keys = (key for key in (self.syntax.arguments_key, *_ARGUMENT_KEYS) if key in value)
        arguments = value.get(next(keys, None))
        if not isinstance(arguments, dict):
            return None
        try:
            return ToolCall(name, encode_arguments(arguments), self._new_id())
        except (ValueError, RecursionError):
            return None


def _skip_blanks(text: str, start: int) -> int:
    return len(text) - len(text[start:].lstrip())


def _overlap_len(text: str, marker: str) -> int:
    """Length of the longest end of a text that is a proper prefix of a marker."""
    return next((k for k in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:k])), 0)


def _quote(text: str) -> str:
    """Quote a text as a string literal of a grammar."""
    return json.dumps(text, ensure_ascii=False)
