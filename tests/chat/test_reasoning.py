"""Reasoning is kept apart from the content, however the output is cut into deltas."""

from __future__ import annotations

import pytest
from tests.chat.lookalike_chats import LOOKALIKES
from tests.chat.published_chats import PUBLISHED
from transformers.utils.chat_template_utils import _compile_jinja_template

from polyhead.chat.apply_template import render_chat
from polyhead.chat.base import Message
from polyhead.chat.chatml import ChatML
from polyhead.chat.detect_template import detect_format
from polyhead.chat.jinja import JinjaChat
from polyhead.chat.reasoning import ReasoningParser, ReasoningSyntax, insert_reasoning
from polyhead.chat.tools import ToolChoice
from polyhead.core.registry import CHAT

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


THINKS_FIRST = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)


def text_of(pieces):
    return "".join(piece.text for piece in pieces)


def test_a_rendered_template_may_start_the_reasoning_itself():
    format = JinjaChat(template=THINKS_FIRST)
    assert format.reasoning == ReasoningSyntax(is_open=True)
    assert text_of(render_chat(format, ASK, True)) == "<|user|>a<|assistant|><think>\n"
    closed = "<|user|>a<|assistant|><think>\n\n</think>\n\n"
    assert text_of(format.render_without_reasoning(ASK, ToolChoice())) == closed

    def parse(messages, thinks, output):
        return ReasoningParser(format.reasoning, messages, thinks).feed(output, True)

    assert parse(ASK, True, "hm\n</think>\n\nb") == ("hm", "b")
    assert parse(ASK, False, "b") == ("", "b")
    assert parse([*ASK, Message("assistant", "do")], True, "gs") == ("", "gs")


@pytest.mark.parametrize("name", ["smollm3", "qwen3"])
def test_a_template_is_asked_for_no_reasoning_as_transformers_asks_it(name):
    template = {**PUBLISHED, **LOOKALIKES}[name]
    format = CHAT.build(detect_format(template))
    talk = [{"role": "user", "content": "a"}]
    wanted = _compile_jinja_template(template).render(
        messages=talk, add_generation_prompt=True, enable_thinking=False
    )
    assert text_of(format.render_without_reasoning(ASK, ToolChoice())) == wanted
    assert wanted != text_of(render_chat(format, ASK, True))
    assert format.reasoning == ReasoningSyntax()
