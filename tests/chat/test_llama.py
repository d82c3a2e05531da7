"""Tests of chat/llama.py."""

from __future__ import annotations

import pytest
from tests.chat.tool_calls_helpers import TOOLS, heard, trained

from polyhead.chat.apply_template import encode_end_tokens
from polyhead.chat.base import Message, ToolCall
from polyhead.chat.tools import build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer

NOW, HOT = ToolCall("now"), ToolCall("weather", '{"place": "Rome", "days": 2}')


def test_of_several_objects_a_model_of_one_call_has_called_the_first() -> None:
    text = '{"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"days": 1}}'
    assert heard("llama3", text) == ("", [("now", "{}")])
    assert heard("llama3", f" {text.partition(';')[0]}\n") == ("", [("now", "{}")])


ASK, CALL = Message("user", "x"), Message("assistant", "", (ToolCall("now", "{}", "call00one"),))


def test_a_call_of_llama_may_end_with_a_token_of_its_own() -> None:
    part, tokenizer = CHAT.build(Choice("llama3")), trained(None)
    assert encode_end_tokens(part, tokenizer) == (tokenizer.token_to_id("<|eot_id|>"), tokenizer.eos_id)
    tokenizer._inner.add_special_tokens(["<|eom_id|>"])
    more = Tokenizer(tokenizer._inner)
    assert encode_end_tokens(part, more) == (
        more.token_to_id("<|eot_id|>"),
        more.token_to_id("<|eom_id|>"),
        more.eos_id,
    )


def test_llama_has_one_place_for_tools_and_one_call_at_once() -> None:
    part = CHAT.build(Choice("llama3"))
    with pytest.raises(UserError, match="one call per message; a message has 2"):
        part.render([ASK, Message("assistant", "", (NOW, HOT)), ASK], True)
    with pytest.raises(
        UserError, match="writes tools into the first message, which must have the role 'user'"
    ):
        part.render([Message("assistant", "x"), ASK], True, build_tool_choice(TOOLS))
