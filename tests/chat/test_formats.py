"""Tests of chat/formats.py."""

import random

import pytest
from tests.chat.chat_helpers import CALL_NOW, NOW_TEXT, QUESTION, TOOLS, parse_output, train_tool_tokenizer

from polyhead.chat.apply_template import encode_end_tokens
from polyhead.chat.base import Message, ToolCall, build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as InnerTokenizer

RESULT = Message("tool", "3")


@pytest.mark.parametrize(
    ("text", "content", "n_calls"),
    [
        (f"a\n{NOW_TEXT}\n", "a", 1),
        (f"\n\n{NOW_TEXT}", "", 1),
        (f"{NOW_TEXT}{NOW_TEXT}\n{NOW_TEXT}", "", 3),
        (f"a {NOW_TEXT} b\n{NOW_TEXT} \n ", "a  b", 2),
        (f"<tool_call>\nno\n</tool_call>\n{NOW_TEXT}", "<tool_call>\nno\n</tool_call>", 1),
        (f"<tool_call> {NOW_TEXT}", "<tool_call> ", 1),
        (NOW_TEXT.removesuffix("\n</tool_call>"), "", 1),
        (NOW_TEXT.replace("\n", " ").replace(" ", "  "), "", 1),
        (NOW_TEXT.replace("arguments", "parameters"), "", 1),
    ],
)
def test_chatml_calls_are_split_from_the_text(text, content, n_calls):
    for cuts in (None, *map(random.Random, range(10))):
        assert parse_output("chatml", text, cuts) == (content, [("now", "{}")] * n_calls)
        start, calls = parse_output("chatml", text, cuts, parallel_tool_calls=False)
        assert calls == [("now", "{}")] and content.startswith(start)


def test_llama3_end_tokens_include_eom_where_it_exists():
    format, tokenizer = CHAT.build(Choice("llama3")), train_tool_tokenizer(None)
    assert encode_end_tokens(format, tokenizer) == (tokenizer.token_to_id("<|eot_id|>"), tokenizer.eos_id)
    inner = InnerTokenizer.from_str(tokenizer.tokenizer_json)
    inner.add_special_tokens(["<|eom_id|>"])
    ids = [Tokenizer(inner).token_to_id(token) for token in ("<|eot_id|>", "<|eom_id|>")]
    assert encode_end_tokens(format, Tokenizer(inner)) == (*ids, tokenizer.eos_id)


def test_llama3_refuses_unsupported_calls_and_tools():
    format, text = CHAT.build(Choice("llama3")), '{"name": "now", "parameters": {}}'
    for output in (f'{text}; {{"name": "weather", "parameters": {{"days": 1}}}}', f" {text}\n"):
        assert parse_output("llama3", output) == ("", [("now", "{}")]), "the first is parsed"
    calls = (ToolCall("now"), ToolCall("weather", '{"place": "Rome", "days": 2}'))
    with pytest.raises(UserError, match="one call per message; a message has 2"):
        format.render([QUESTION, Message("assistant", "", calls), QUESTION], True)
    message = "writes tools into the first message, which must have the role 'user'"
    with pytest.raises(UserError, match=message):
        format.render([Message("assistant", "x"), QUESTION], True, build_tool_choice(TOOLS))


@pytest.mark.parametrize("blank", ["", " "])
def test_mistral_calls_are_parsed_without_their_mark(blank):
    for text in ('[{"name": "now", "arguments": {}}]', '{"name": "now", "arguments": {}, "id": "a"}'):
        for mark in ("", "[TOOL_CALLS]"):
            assert parse_output("mistral", f"{mark}{blank}{text}") == ("", [("now", "{}")])


def test_mistral_call_ids_must_have_nine_characters():
    other = Message("assistant", "", (ToolCall("now", "{}", "a-b"),))
    for call, message in ((other, "the id 'a-b' of a call must be nine letters"), (CALL_NOW, "the id ''")):
        with pytest.raises(UserError, match=message):
            CHAT.build(Choice("mistral")).render([QUESTION, call, RESULT], True)


@pytest.mark.parametrize("style", ["first", "v1"])
def test_old_mistral_styles_refuse_tools(style):
    format = CHAT.build(Choice("mistral", style=style))
    message = f"tools in the style '{style}'; v3 and tekken do"
    for messages, tools in (([QUESTION], TOOLS), ([QUESTION, CALL_NOW, RESULT], None)):
        with pytest.raises(UserError, match=f"does not support {message}"):
            format.render(messages, True, build_tool_choice(tools))
