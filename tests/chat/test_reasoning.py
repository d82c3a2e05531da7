"""Reasoning is kept apart from the content, however the output is cut into deltas."""

from __future__ import annotations

import pytest

from polyhead.chat.base import Message
from polyhead.chat.chatml import ChatML
from polyhead.chat.reasoning import ReasoningParser, ReasoningSyntax, insert_reasoning

ASK = [Message("user", "a")]
OUTPUTS = [  # output, reasoning, content
    ("<think>\nab\n\ncd\n</think>\n\ndogs\n", "ab\n\ncd", "dogs\n"),
    ("<think>\n\n</think>\n\ndogs", "", "dogs"),
    ("\n <think>ab</think>dogs <think> x", "ab", "dogs <think> x"),
    ("dogs <think>ab</think>", "", "dogs <think>ab</think>"),
    ("  dogs", "", "  dogs"),
    ("<think>\nab </thin\n", "ab </thin", ""),
    ("<think>ab</think>\n\n", "ab", ""),
    ("<thin", "", "<thin"),
    ("", "", ""),
]


@pytest.mark.parametrize(("output", "reasoning", "content"), OUTPUTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_reasoning_is_split_from_the_content(output, reasoning, content, size):
    parser = ReasoningParser(ReasoningSyntax(), ASK, True)
    parts = [output[i : i + size] for i in range(0, len(output), size)]
    found = [parser.feed(part) for part in parts] + [parser.feed("", True)]
    assert ("".join(a for a, _ in found), "".join(b for _, b in found)) == (reasoning, content)
    assert parser.consumed_bytes == len(output.encode()) - len(content.encode())


def test_an_answer_may_start_inside_or_after_its_reasoning():
    def parse(messages, thinks, output):
        return ReasoningParser(ReasoningSyntax(), messages, thinks).feed(output, True)

    assert parse(ASK, False, "<think>a</think>b") == ("", "<think>a</think>b")
    assert parse([*ASK, Message("assistant", "<think>\na")], True, "b</think>\n\nc") == ("b", "c")
    assert parse([*ASK, Message("assistant", "do")], True, "gs") == ("", "gs")
    assert parse([*ASK, Message("assistant", " ")], True, "<think>a</think>b") == ("a", "b")


def test_reasoning_of_earlier_answers_is_written_as_the_model_writes_it():
    """Qwen 3 keeps the reasoning after the last question only, as its template does."""
    (message,) = insert_reasoning([Message("assistant", "b", reasoning="a\n")], ReasoningSyntax())
    assert message == Message("assistant", "<think>\na\n</think>\n\nb")
    assert insert_reasoning([Message("assistant", "b", reasoning="a")], None)[0].content == "b"
    assert ChatML(thinks=True).reasoning == ReasoningSyntax() and ChatML().reasoning is None
