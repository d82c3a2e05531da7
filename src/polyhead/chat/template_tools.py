"""Detect the tool-call syntax of a chat template by rendering probe messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from polyhead.chat.base import Message, ToolCall
from polyhead.chat.tool_calls import ToolCallSyntax

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


class CallStyle(NamedTuple):
    """The fields of an assistant message with tool calls that a template expects."""

    arguments_as_text: bool = False  # JSON in a string, else an object
    null_content: bool = False  # a message without text has the content None, else ""


# the most common first
CALL_STYLES = [CallStyle(text, null) for null in (False, True) for text in (False, True)]


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


def find_call_style(texts: Mapping[CallStyle, str], call: ToolCall) -> CallStyle | None:
    """The style in which a template writes this call, by what it wrote in each: preferably as JSON."""
    ((key, value),) = json.loads(call.arguments).items()
    patterns = (
        rf'(?s){call.name}.*"{key}"\s*:\s*"{value}"',
        rf"(?s){call.name}.*{key}.*{value}",
    )
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
