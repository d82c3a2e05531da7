"""Tests of chat/reasoning.py: reasoning is split from the content in any pieces of the output."""

import pytest
from tests.chat.chat_helpers import detect, join_pieces
from tests.chat.published_chats import LOOKALIKES, PUBLISHED_TEMPLATES
from transformers.utils.chat_template_utils import _compile_jinja_template

from polyhead.chat.apply_template import render_chat
from polyhead.chat.base import Message, ToolChoice
from polyhead.chat.formats import ChatML
from polyhead.chat.jinja import JinjaChat
from polyhead.chat.reasoning import ReasoningParser, ReasoningSyntax, insert_reasoning
from polyhead.core.registry import CHAT

QUESTION = [Message("user", "a")]


def parse(syntax, start, is_enabled, output):
    """Reasoning and content of an output that continues an answer; no answer for ``start=None``."""
    messages = QUESTION if start is None else [*QUESTION, Message("assistant", start)]
    return ReasoningParser(syntax, messages, is_enabled).feed(output, True)


@pytest.mark.parametrize(
    ("output", "reasoning", "content"),
    [
        ("<think>\nab\n\ncd\n</think>\n\ndogs\n", "ab\n\ncd", "dogs\n"),
        ("<think>\n\n</think>\n\ndogs", "", "dogs"),
        ("\n <think>ab</think>dogs <think> x", "ab", "dogs <think> x"),
        ("dogs <think>ab</think>", "", "dogs <think>ab</think>"),
        ("  dogs", "", "  dogs"),
        ("<think>\nab </thin\n", "ab </thin", ""),
        ("<think>ab</think>\n\n", "ab", ""),
        ("<thin", "", "<thin"),
        ("", "", ""),
    ],
)
def test_reasoning_is_split_from_the_content(output, reasoning, content):
    for size in (1, 2, 3, 7, 100):
        parser = ReasoningParser(ReasoningSyntax(), QUESTION, True)
        deltas = [parser.feed(output[i : i + size]) for i in range(0, len(output), size)]
        deltas.append(parser.feed("", True))
        assert tuple(map("".join, zip(*deltas, strict=True))) == (reasoning, content), size


def test_reasoning_may_start_before_the_output():
    syntax = ReasoningSyntax()
    assert parse(syntax, None, False, "<think>a</think>b") == ("", "<think>a</think>b")
    assert parse(syntax, "<think>\na", True, "b</think>\n\nc") == ("b", "c")
    assert parse(syntax, "do", True, "gs") == ("", "gs")
    assert parse(syntax, " ", True, "<think>a</think>b") == ("a", "b")
    (message,) = insert_reasoning([Message("assistant", "b", reasoning="a\n")], ReasoningSyntax())
    assert message == Message("assistant", "<think>\na\n</think>\n\nb")
    assert insert_reasoning([Message("assistant", "b", reasoning="a")], None)[0].content == "b"
    assert ChatML(thinks=True).reasoning == ReasoningSyntax() and ChatML().reasoning is None


def test_template_may_open_the_reasoning_itself():
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
    )
    format = JinjaChat(template=template)
    assert format.reasoning == ReasoningSyntax(is_open=True)
    assert join_pieces(render_chat(format, QUESTION, True)) == "<|user|>a<|assistant|><think>\n"
    closed_prompt = "<|user|>a<|assistant|><think>\n\n</think>\n\n"
    assert join_pieces(format.render_without_reasoning(QUESTION, ToolChoice())) == closed_prompt
    assert parse(format.reasoning, None, True, "hm\n</think>\n\nb") == ("hm", "b")
    assert parse(format.reasoning, None, False, "b") == ("", "b")
    assert parse(format.reasoning, "do", True, "gs") == ("", "gs")


@pytest.mark.parametrize("name", ["smollm3", "qwen3"])
def test_enable_thinking_false_renders_as_transformers_does(name):
    format = CHAT.build(detect(name))
    expected = _compile_jinja_template((PUBLISHED_TEMPLATES | LOOKALIKES)[name]).render(
        messages=[{"role": "user", "content": "a"}], add_generation_prompt=True, enable_thinking=False
    )
    assert join_pieces(format.render_without_reasoning(QUESTION, ToolChoice())) == expected
    assert expected != join_pieces(render_chat(format, QUESTION, True))
    assert format.reasoning == ReasoningSyntax()
