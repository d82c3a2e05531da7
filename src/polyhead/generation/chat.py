"""Chat with a language model: messages in, a streamed answer out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from polyhead.chat.apply_template import (
    build_output_tokenizer,
    check_vocabulary,
    encode_chat,
    encode_end_tokens,
    render_chat,
)
from polyhead.chat.base import ChatFormat, Message, split_system
from polyhead.chat.tool_calls import ToolCallFormat, ToolCallSyntax
from polyhead.chat.tools import ToolChoice, build_tool_choice, parse_tool_calls
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean, format_value
from polyhead.core.registry import CHAT
from polyhead.generation.text_engine import PreparedRequest, TextEngine
from polyhead.generation.text_output import TextOutput

_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id")  # fields of a Message, as mapping keys


class ChatSession:
    """A text engine with the chat format of its model."""

    def __init__(self, engine: TextEngine, choice: Choice | None) -> None:
        if choice is None:
            raise UserError(
                "nothing says how this run writes conversations, or it does so as no format here; "
                f"if you know how, name it with --chat or chat=: {', '.join(CHAT.names())}"
            )
        self.engine, self.choice = engine, CHAT.check(choice)
        self.format: ChatFormat = CHAT.build(self.choice)
        check_vocabulary(self.format, engine.tokenizer)
        self.eos_ids = encode_end_tokens(self.format, engine.tokenizer)
        self.tool_syntax: ToolCallSyntax | None = (
            self.format.tool_syntax if isinstance(self.format, ToolCallFormat) else None
        )
        self.output_tokenizer = build_output_tokenizer(self.format, engine.tokenizer)

    def encode_prompt(self, messages: Sequence[Message], tools: ToolChoice = ToolChoice()) -> list[int]:
        """The prompt tokens, after which the model generates the answer."""
        return encode_chat(
            self.format, self.engine.tokenizer, messages, add_generation_prompt=True, tools=tools
        ).ids

    def count_overhead_chars(self, tools: ToolChoice) -> int:
        """Characters of the chat template with ``tools`` and one empty user message."""
        return sum(len(piece.text) for piece in render_chat(self.format, [Message("user", "")], True, tools))

    def truncate_history(
        self, messages: Sequence[Message], max_tokens: int, tools: ToolChoice = ToolChoice()
    ) -> list[Message]:
        """Drop the oldest turns until the conversation fits into ``max_tokens`` tokens.

        The system message is kept. A last question that does not fit alone is a UserError.
        """
        system, turns = split_system(messages)
        head = [] if system is None else [Message("system", system)]
        starts = [0, *(i for i in range(1, len(turns)) if turns[i].role == "user")]

        def count_tokens(start: int) -> int:
            return len(self.encode_prompt([*head, *turns[start:]], tools))

        if count_tokens(0) <= max_tokens:
            return list(messages)
        first_kept = bisect_left(starts, True, lo=1, key=lambda start: count_tokens(start) <= max_tokens)
        if first_kept == len(starts):
            raise UserError(
                f"the conversation has {count_tokens(starts[-1])} tokens and room for {max(max_tokens, 0)}: say less at once"
            )
        return [*head, *turns[starts[first_kept] :]]

    def history_within(
        self, messages: Sequence[Message], options: Mapping[str, Any], tools: ToolChoice = ToolChoice()
    ) -> list[Message]:
        """Truncate the history to leave room for ``max_new_tokens``, at most half of the model's length."""
        max_len = self.engine.max_len
        max_new_tokens = options.get("max_new_tokens", self.engine.config.max_new_tokens)
        max_tokens = (
            max_len + 1 - min(max_new_tokens, max_len // 2) if isinstance(max_new_tokens, int) else max_len
        )
        return self.truncate_history(messages, max_tokens, tools)

    def build_options(self, tools: ToolChoice = ToolChoice()) -> dict[str, Any]:
        """Options of every request: end tokens, trimming, and with tools the output tokenizer and grammar."""
        options: dict[str, Any] = {"turn_ends": self.eos_ids, "trim": self.format.trim_content}
        if not tools.all_tools or self.tool_syntax is None:
            return options  # a format without tool support has already refused to render them
        return (
            options
            | {"output_tokenizer": self.output_tokenizer}
            | ({"form": self.tool_syntax.build_grammar(tools)} if tools.required_tools else {})
        )

    def prepare_request(
        self, messages: Sequence[Message], tools: ToolChoice = ToolChoice(), **options: Any
    ) -> PreparedRequest:
        """Check the request for an answer; ``options`` are those of ``TextEngine.prepare_request``.

        If the conversation is too long its oldest turns are dropped, see ``history_within``.
        """
        if tools.required_tools and options.get("form") is not None:
            raise UserError(
                "an answer has one form: tool_choice asks for a call, and form for something else"
            )
        ids = self.encode_prompt(self.history_within(messages, options, tools), tools)
        try:
            return self.engine.prepare_request(ids, **(options | self.build_options(tools)))
        except UserError as error:
            if self.tool_syntax and tools.required_tools and str(error).startswith("form "):
                raise UserError(self.tool_syntax.explain_error(str(error), tools)) from None
            raise

    def answer(
        self, messages: Iterable[Any], *, tools: Any = None, tool_choice: Any = None, **options: Any
    ) -> Iterator[str]:
        """Stream the assistant's answer; closing the iterator cancels the request."""
        return self._answer(parse_conversation(messages), build_tool_choice(tools, tool_choice), options)

    def reply(
        self, messages: Iterable[Any], *, tools: Any = None, tool_choice: Any = None, **options: Any
    ) -> Message:
        """The assistant's answer as a message with its tool calls, ready to append to the conversation."""
        choice = build_tool_choice(tools, tool_choice)
        text = "".join(self._answer(parse_conversation(messages), choice, options))
        if self.tool_syntax is None:
            return Message("assistant", text)
        content, calls = self.tool_syntax.make_parser(choice).feed(text, True)
        return Message("assistant", content, tuple(calls))

    def _answer(
        self, messages: Sequence[Message], tools: ToolChoice, options: Mapping[str, Any]
    ) -> Iterator[str]:
        if options.get("n", 1) != 1:
            raise UserError(
                f"n is {format_value(options['n'])}, and a chat has one answer; ask again with another seed"
            )
        stream: TextOutput = self.engine.start_request(self.prepare_request(messages, tools, **options))
        try:
            for delta in stream:
                yield delta.text
        finally:
            stream.cancel()


def parse_conversation(items: Iterable[Any]) -> list[Message]:
    """Parse a conversation of messages, or of mappings with role and content."""
    if isinstance(items, str | Mapping | Message) or not isinstance(items, Iterable):
        raise UserError('a conversation is a list of messages: [{"role": "user", "content": "..."}]')
    return [parse_message(item, number) for number, item in enumerate(items)]


def parse_message(item: Any, number: int) -> Message:
    """Parse one message; ``number`` is its index in error messages."""
    if isinstance(item, Message):
        item = dict(zip(_MESSAGE_KEYS, item, strict=True))
    if not isinstance(item, Mapping):
        raise UserError(f"message {number} is {format_value(item)}, wanted a role and a content")
    calls = parse_tool_calls(item.get("tool_calls"), number)
    content, answers = item.get("content"), item.get("tool_call_id")
    for key, value in (
        ("role", item.get("role")),
        ("content", "" if calls and content is None else content),
        ("tool_call_id", "" if answers is None else answers),
    ):
        if not isinstance(value, str):
            raise UserError(f"message {number} has no text as its {key}: {format_value(value)}")
    for key in item:
        if key not in _MESSAGE_KEYS:
            raise UserError(
                f"message {number} has {format_value(key)}, which is not known{did_you_mean(str(key), _MESSAGE_KEYS)}"
            )
    return Message(item["role"], content or "", calls, answers or "")
