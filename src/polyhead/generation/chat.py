"""Chat with a language model: messages in, a streamed answer out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

from polyhead.chat.apply_template import (
    build_output_tokenizer,
    check_vocabulary,
    encode_chat,
    encode_end_tokens,
    render_chat,
)
from polyhead.chat.base import (
    MESSAGE_ROLE_ALIASES,
    ROLES_WITHOUT_CONTENT,
    ChatFormat,
    Message,
    ToolChoice,
    build_tool_choice,
    is_prefill,
    parse_tool_calls,
)
from polyhead.chat.reasoning import reasoning_syntax
from polyhead.chat.tool_calls import ToolCallParser, get_tool_syntax
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean, format_value, is_command_line
from polyhead.core.registry import CHAT
from polyhead.generation.text_engine import PreparedRequest, TextEngine
from polyhead.generation.text_output import TextOutput

_MESSAGE_KEYS = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "reasoning",
)  # fields of a Message, as mapping keys


class ChatPrompt(NamedTuple):
    """A conversation that fits into the context, and its tokens."""

    messages: list[Message]
    ids: list[int]


class ChatSession:
    """A text engine with the chat format of its model."""

    def __init__(self, engine: TextEngine, choice: Choice | None) -> None:
        if choice is None:
            raise UserError(
                "the chat format of this run is unknown or unsupported; set it with "
                f"{'--chat' if is_command_line() else 'chat='}: {', '.join(CHAT.names())}"
            )
        self.engine, self.choice = engine, CHAT.check(choice)
        self.format: ChatFormat = CHAT.build(self.choice)
        check_vocabulary(self.format, engine.tokenizer)
        self.eos_ids = encode_end_tokens(self.format, engine.tokenizer)
        self.tool_syntax = get_tool_syntax(self.format)
        self.reasoning = reasoning_syntax(self.format)
        self.output_tokenizer = build_output_tokenizer(self.format, engine.tokenizer)

    def encode_prompt(
        self, messages: Sequence[Message], tools: ToolChoice = ToolChoice(), thinks: bool = True
    ) -> list[int]:
        """The prompt tokens, after which the model generates the answer or the rest of it.

        Without ``thinks`` it writes no reasoning first.
        """
        return encode_chat(self.format, self.engine.tokenizer, messages, True, tools, thinks).ids

    def count_overhead_chars(self, tools: ToolChoice) -> int:
        """Characters of the chat template with ``tools`` and one empty user message."""
        return sum(len(piece.text) for piece in render_chat(self.format, [Message("user", "")], True, tools))

    def truncate_history(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        tools: ToolChoice = ToolChoice(),
        fallback_max_tokens: int = 0,
        thinks: bool = True,
    ) -> ChatPrompt:
        """Drop the oldest turns until the conversation fits into ``max_tokens`` tokens.

        The system messages at the start are kept. If not even the last question fits,
        ``fallback_max_tokens`` counts; if it does not fit there either, a UserError. A conversation that fits
        is encoded once.
        """
        head = list(takewhile(lambda message: message.role == "system", messages))
        turns = messages[len(head) :]
        starts = _find_turn_starts(turns)

        @cache
        def encode_from(start: int) -> ChatPrompt:
            kept = [*head, *turns[start:]]
            return ChatPrompt(kept, self.encode_prompt(kept, tools, thinks))

        for room in (max_tokens, max(max_tokens, fallback_max_tokens)):
            if len(encode_from(0).ids) <= room:
                return encode_from(0)
            first_kept = bisect_left(starts, -room, lo=1, key=lambda start: -len(encode_from(start).ids))
            if first_kept < len(starts):
                return encode_from(starts[first_kept])
        num_tokens = len(encode_from(starts[-1]).ids)
        raise UserError(
            f"the conversation has {num_tokens} tokens, but only {max(room, 0)} fit: shorten the message"
        )

    def history_within(
        self, messages: Sequence[Message], options: Mapping[str, Any], tools: ToolChoice = ToolChoice()
    ) -> ChatPrompt:
        """Truncate the history to leave room for ``max_new_tokens``, at most half of the model's length."""
        max_len = self.engine.max_len
        max_new_tokens = options.get("max_new_tokens", self.engine.config.max_new_tokens)
        max_tokens = (
            max_len + 1 - min(max_new_tokens, max_len // 2) if isinstance(max_new_tokens, int) else max_len
        )
        return self.truncate_history(messages, max_tokens, tools)

    def build_options(self, messages: Sequence[Message], tools: ToolChoice = ToolChoice()) -> dict[str, Any]:
        """Options of every request: end tokens, trimming, and with tools the output tokenizer and grammar."""
        is_continued = is_prefill(messages) and bool(messages[-1].content.strip())
        options: dict[str, Any] = {
            "turn_ends": self.eos_ids,
            "trim": self.format.trim_content and not is_continued,
        }
        if self.reasoning:
            options["output_tokenizer"] = self.output_tokenizer
        if not tools.all_tools or self.tool_syntax is None:
            return options  # a format without tool support has already refused to render them
        return (
            options
            | {"output_tokenizer": self.output_tokenizer}
            | ({"grammar": self.tool_syntax.build_grammar(tools)} if tools.required_tools else {})
        )

    def prepare_request(
        self, messages: Sequence[Message] | ChatPrompt, tools: ToolChoice = ToolChoice(), **options: Any
    ) -> PreparedRequest:
        """Check the request for an answer; ``options`` are those of ``TextEngine.prepare_request``.

        If the conversation is too long its oldest turns are dropped, see ``history_within``, whose result
        ``messages`` may also be.
        """
        if tools.required_tools and options.get("grammar") is not None:
            raise UserError("tool_choice that requires a call and grammar cannot be combined")
        if not isinstance(messages, ChatPrompt):
            messages = self.history_within(messages, options, tools)
        try:
            return self.engine.prepare_request(
                messages.ids, **(options | self.build_options(messages.messages, tools))
            )
        except UserError as error:
            if self.tool_syntax and tools.required_tools and str(error).startswith("grammar "):
                raise UserError(self.tool_syntax.explain_error(str(error), tools)) from None
            raise

    def answer(
        self, messages: Iterable[Any], *, tools: Any = None, tool_choice: Any = None, **options: Any
    ) -> Iterator[str]:
        """Stream the assistant's answer; closing the iterator cancels the request.

        If the last message is the start of an answer, only what continues it is returned.
        """
        return self._answer(parse_conversation(messages), build_tool_choice(tools, tool_choice), options)

    def start_answer(
        self, messages: Sequence[Message] | ChatPrompt, tools: ToolChoice = ToolChoice(), **options: Any
    ) -> TextOutput:
        """Start the answer to a conversation, which ``history_within`` may have encoded."""
        return self.engine.start_request(self.prepare_request(messages, tools, **options))

    def reply(
        self, messages: Iterable[Any], *, tools: Any = None, tool_choice: Any = None, **options: Any
    ) -> Message:
        """The assistant's answer as a message with its tool calls, ready to append to the conversation."""
        choice = build_tool_choice(tools, tool_choice)
        text = "".join(self._answer(parse_conversation(messages), choice, options))
        if self.tool_syntax is None:
            return Message("assistant", text)
        content, calls = ToolCallParser(self.tool_syntax, choice).feed(text, True)
        return Message("assistant", content, tuple(calls))

    def _answer(
        self, messages: Sequence[Message], tools: ToolChoice, options: Mapping[str, Any]
    ) -> Iterator[str]:
        if options.get("n", 1) != 1:
            raise UserError(
                f"n is {format_value(options['n'])}, but a chat has one answer; repeat the request "
                "with another seed"
            )
        stream = self.start_answer(messages, tools, **options)
        try:
            for delta in stream:
                yield delta.text
        finally:
            stream.cancel()


def _find_turn_starts(turns: Sequence[Message]) -> list[int]:
    """Where a conversation may be cut: at a user message, with the system messages directly before it."""
    starts = {0}
    for i, message in enumerate(turns):
        if message.role == "user":
            while i and turns[i - 1].role == "system":
                i -= 1
            starts.add(i)
    return sorted(starts)


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
        raise UserError(f"message {number} is {format_value(item)}, expected a role and a content")
    calls = parse_tool_calls(item.get("tool_calls"), number)
    role, content, answers = item.get("role"), item.get("content"), item.get("tool_call_id")
    reasoning = item.get("reasoning")
    for key, value in (
        ("role", role),
        ("content", "" if role in ROLES_WITHOUT_CONTENT and content is None else content),
        ("tool_call_id", "" if answers is None else answers),
        ("reasoning", "" if reasoning is None else reasoning),
    ):
        if not isinstance(value, str):
            raise UserError(f"message {number} has no text as its {key}: {format_value(value)}")
    for key in item:
        if key not in _MESSAGE_KEYS:
            raise UserError(
                f"message {number} has {format_value(key)}, an unknown "
                f"key{did_you_mean(str(key), _MESSAGE_KEYS)}"
            )
    role = MESSAGE_ROLE_ALIASES.get(item["role"]) or item["role"]
    return Message(role, content or "", calls, answers or "", reasoning or "")
