import pytest
from tests.chat.chat_helpers import QUESTION, TOOLS, parse_output, train_tool_tokenizer

from polyhead.chat.apply_template import encode_end_tokens
from polyhead.chat.base import Message, ToolCall
from polyhead.chat.tools import build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as InnerTokenizer


def test_end_tokens_include_eom_where_it_exists():
    format, tokenizer = CHAT.build(Choice("llama3")), train_tool_tokenizer(None)
    assert encode_end_tokens(format, tokenizer) == (tokenizer.token_to_id("<|eot_id|>"), tokenizer.eos_id)
    inner = InnerTokenizer.from_str(tokenizer.tokenizer_json)
    inner.add_special_tokens(["<|eom_id|>"])
    ids = [Tokenizer(inner).token_to_id(token) for token in ("<|eot_id|>", "<|eom_id|>")]
    assert encode_end_tokens(format, Tokenizer(inner)) == (*ids, tokenizer.eos_id)


def test_unsupported_calls_and_tools_are_refused():
    format, text = CHAT.build(Choice("llama3")), '{"name": "now", "parameters": {}}'
    for output in (f'{text}; {{"name": "weather", "parameters": {{"days": 1}}}}', f" {text}\n"):
        assert parse_output("llama3", output) == ("", [("now", "{}")]), "the first is parsed"
    calls = (ToolCall("now"), ToolCall("weather", '{"place": "Rome", "days": 2}'))
    with pytest.raises(UserError, match="one call per message; a message has 2"):
        format.render([QUESTION, Message("assistant", "", calls), QUESTION], True)
    message = "writes tools into the first message, which must have the role 'user'"
    with pytest.raises(UserError, match=message):
        format.render([Message("assistant", "x"), QUESTION], True, build_tool_choice(TOOLS))
