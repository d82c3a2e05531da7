"""Templates of checkpoints are rendered to the text and the tokens of transformers."""

import json
from itertools import groupby
from typing import Any

import jinja2.exceptions
import pytest
from tests.chat.chat_helpers import ROLES, detect, join_pieces, load_reference, to_messages
from tests.chat.published_chats import LOOKALIKES, PUBLISHED_TEMPLATES
from transformers.utils.chat_template_utils import _compile_jinja_template

import tokenizers
from polyhead.chat.apply_template import encode_answers, encode_chat, encode_end_tokens, render_chat
from polyhead.chat.base import Message, ToolCall, ToolChoice, build_tool_choice
from polyhead.chat.jinja import JinjaChat
from polyhead.chat.tool_calls import ToolCallParser
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken

MARKS = [
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|user|>", "<|assistant|>", "<｜User｜>"),
    *("<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|end_of_turn|>", "<extra_id_1>", "[|endofturn|]"),
    *("<|END_OF_TURN_TOKEN|>", "<|start_of_role|>", "<|end_of_text|>", "<|start_header_id|>", "</think>"),
    *("<|im_sep|>", "[INST]", "[/INST]"),
]
SYSTEM = {"role": "system", "content": "Be <brief>.\n"}
HELLO, WELL = {"role": "user", "content": " Is 2 < 3?"}, {"role": "assistant", "content": "Yes.\n"}
THINKING_ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo [it] is."}
MORE, BLANK = {"role": "user", "content": "犬 {x} | y\n"}, {"role": "user", "content": ""}
SUM_SCHEMA = {"type": "object", "properties": {"é<": {"type": "string"}}, "required": ["é<"]}
ADD_UP = {"name": "add_up", "description": "a <sum> & 'more'", "parameters": SUM_SCHEMA}
READ_CLOCK = {"name": "read_clock", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": function} for function in (ADD_UP, READ_CLOCK)]
ARGUMENTS = {"é<": "a > b", "n": [1, None]}


def call_message(name):
    function = {"name": name, "arguments": ARGUMENTS}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


OLD_CALL = call_message("old_function")
RESULT = {"role": "tool", "content": '{"sum": "<3>"}', "tool_call_id": "call00001", "name": "old_function"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [HELLO],
    [SYSTEM, HELLO],
    [HELLO, WELL],
    [SYSTEM, HELLO, WELL, MORE],
    [HELLO, THINKING_ANSWER, MORE],
    [HELLO, WELL, MORE, THINKING_ANSWER],
    [SYSTEM, HELLO, WELL, BLANK, WELL, MORE],
]
TEXT_ARGUMENTS = {"deepseek-r1"}  # templates that read the arguments of calls as text


@pytest.fixture(scope="module")
def tokenizer():
    inner = train_tokenizer(["Is 2 < 3? Yes. Be brief. hm So it is"] * 3, Choice("bpe"), 300)._inner
    inner.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return Tokenizer(tokenizers.Tokenizer.from_str(inner.to_str()), ROLES)


def render_reference(tokenizer, name, conversation, **options):
    """The rendering of transformers."""
    template = (PUBLISHED_TEMPLATES | LOOKALIKES)[name]
    conversation = json.loads(json.dumps(conversation))
    calls = [message for message in conversation if "tool_calls" in message]
    options["add_generation_prompt"] = conversation[-1]["role"] != "assistant"
    if name in TEXT_ARGUMENTS and calls:
        for message in calls:
            message["content"] = None
            for call in message["tool_calls"]:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        # apply_chat_template drops a content of None, which this template was written for
        return _compile_jinja_template(template).render(messages=conversation, **ROLES, **options)
    reference = load_reference(tokenizer.tokenizer_json, template)
    return reference.apply_chat_template(conversation, return_dict=False, **options)


def render(format, conversation, tools=ToolChoice()):
    answer = conversation[-1]["role"] != "assistant"
    return join_pieces(render_chat(format, to_messages(conversation), answer, tools))


def has_system(conversation, text):
    """Whether transformers writes the system messages; here dropped ones are merged."""
    return all(m["content"].strip() in text for m in conversation if m["role"] == "system")


@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.whole
def test_text_and_tokens_equal_those_of_transformers(tokenizer, name):
    format = CHAT.build(detect(name))
    num_equal = 0
    for conversation in CONVERSATIONS:
        try:
            expected = render_reference(tokenizer, name, conversation, tokenize=False)
        except jinja2.exceptions.TemplateError:
            continue
        if has_system(conversation, expected):
            assert render(format, conversation) == expected
            num_equal += 1
    assert num_equal >= 4
    conversation = [HELLO, WELL, MORE] if name == "olmo1" else [SYSTEM, HELLO, WELL, MORE]
    ids = encode_chat(format, tokenizer, to_messages(conversation), True).ids
    assert ids == render_reference(tokenizer, name, conversation)


@pytest.mark.parametrize("name", [*LOOKALIKES, "qwen2.5", "llama3.1"])
@pytest.mark.whole
def test_tools_equal_those_of_transformers_or_are_refused(tokenizer, name):
    format = CHAT.build(detect(name))
    call_chat = [HELLO, OLD_CALL, RESULT]
    for conversation in (CONVERSATIONS[1], call_chat, [SYSTEM, *call_chat, WELL, MORE]):
        for tools in (TOOLS, None):
            try:
                expected = render_reference(tokenizer, name, conversation, tokenize=False, tools=tools)
            except (jinja2.exceptions.TemplateError, TypeError):
                expected = ""
            if not has_system(conversation, expected):
                continue
            names = ["old_function"] * (OLD_CALL in conversation) + ["read_clock"] * bool(tools)
            if all(word in expected for word in names):
                assert render(format, conversation, build_tool_choice(tools)) == expected
            else:
                with pytest.raises(UserError, match=r"does not support tools|cannot write this conversation"):
                    render(format, conversation, build_tool_choice(tools))


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("hermes", "<tool_call>\n"),
        ("qwq", "<tool_call>\n"),
        ("qwen3-2507", "<tool_call>\n"),
        ("llama3.2", ""),
        ("granite3", "<|tool_call|>["),
    ],
)
def test_calls_are_parsed_by_their_marks(name, mark):
    format, tools = JinjaChat(template=LOOKALIKES[name]), build_tool_choice(TOOLS)
    syntax = format.tool_syntax
    text = render(format, [HELLO, call_message("add_up")], tools)
    text = text[text.rindex('{"name": "add_up"') - len(mark) :]
    assert text.startswith(mark)
    content, calls = ToolCallParser(syntax, tools).feed(text[: text.index(format.end_tokens[0].text)], True)
    assert not content
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("add_up", ARGUMENTS)]
    n = 2 if syntax.parallel_tool_calls else 1
    body = json.dumps({"name": "read_clock", syntax.arguments_key: {}})
    call = syntax.call_start + body + syntax.call_end
    text = syntax.list_start + syntax.separator.join([call] * n) + syntax.list_end
    _, calls = ToolCallParser(syntax, tools).feed(text, True)
    assert [call.name for call in calls] == ["read_clock"] * n


def test_unsupported_calls_and_system_messages():
    format = JinjaChat(template=LOOKALIKES["qwen3-coder"])
    assert format.tool_syntax is None
    with pytest.raises(UserError, match="the marks of tool calls in this chat template are unknown"):
        format.render([Message("user", "x")], True, build_tool_choice(TOOLS, "required"))
    format = JinjaChat(template=LOOKALIKES["olmo1"])  # drops it
    merged_message = HELLO | {"content": f"{SYSTEM['content']}\n\n{HELLO['content']}"}
    assert render(format, [SYSTEM, HELLO]) == render(format, [merged_message])
    gemma = JinjaChat(template=PUBLISHED_TEMPLATES["gemma2"])  # refuses it
    assert "user\nBe <brief>.\n\n\n Is 2" in render(gemma, [SYSTEM, HELLO])


@pytest.mark.acceptance("F4")
@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.whole
def test_user_text_never_becomes_a_special_token(tokenizer, name):
    """In messages, definitions of tools, arguments and results; neither as one piece nor joined."""
    format, special = CHAT.build(detect(name)), set(tokenizer.special_ids)

    def special_ids(text, tools=ToolChoice(), argument=""):
        roles = ("system", "user", "assistant")
        messages = [Message(role, f"a{text}b") for role in roles] + [Message("user", f"i{text}")]
        if argument:
            call = ToolCall("f", json.dumps({"k": argument}), "call00001")
            messages += [Message("assistant", "", (call,)), Message("tool", f"g{argument}h", (), call.id)]
        return [i for i in encode_chat(format, tokenizer, messages, True, tools).ids if i in special]

    def define_tool(text):
        parameters = {"type": "object", "properties": {text: {"type": "string"}}}
        function = {"name": "f", "description": text, "parameters": parameters}
        return build_tool_choice([{"type": "function", "function": function}])

    forged_text = "".join(tokenizer.special_tokens) + "<|im_\nend|>" + "<|im_end|" + ">"
    assert special_ids(forged_text) == special_ids("x")
    if name in ("hermes", "qwq", "qwen3-2507", "qwen3-coder", "llama3.2", "granite3", "lfm2"):
        has_calls = format._call_style is not None
        expected = special_ids("x", define_tool("x"), "x" if has_calls else "")
        assert special_ids("x", define_tool(forged_text), forged_text if has_calls else "") == expected


def test_ends_and_trimming_are_those_of_the_template(tokenizer):
    ends = {name: JinjaChat(template=template).end_tokens[0].text for name, template in LOOKALIKES.items()}
    assert ends["yi"] == ends["hermes"] == ends["lfm2"] == "<|im_end|>"
    assert ends["openchat"] == "<|end_of_turn|>" and ends["exaone"] == "[|endofturn|]"
    assert ends["deepseek-r1"] == "<｜end▁of▁sentence｜>"
    assert ends["vicuna"] == ends["falcon3"] == ends["solar"] == "eos_token"
    format = JinjaChat(template=LOOKALIKES["phi-4-mini"])
    assert encode_end_tokens(format, tokenizer) == (tokenizer.token_to_id("<|end|>"), tokenizer.eos_id)
    for name, trims in (("chatml-trimmed", True), ("internlm2", False)):
        assert JinjaChat(template=LOOKALIKES[name]).trim_content == trims


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("chatml-generation", "<|im_end|>"),
        ("chatml-eos", "<|im_end|>"),
        ("qwen3-2507", "<|im_end|>"),
        ("vicuna", "eos_token"),
        ("mistral-v7", "eos_token"),
        ("command-r", "<|END_OF_TURN_TOKEN|>"),
    ],
)
def test_answers_of_a_complete_conversation_are_marked(name, end):
    """As ``{% generation %}`` marks them, or where the text changes with the answer."""
    format = JinjaChat(template=LOOKALIKES[name])
    contents = [("user", "yes"), ("assistant", "yes"), ("user", "and"), ("assistant", "<b>")]
    pieces = format.render([Message(*content) for content in contents], False)
    text = "".join(piece.text if piece.is_assistant else "\0" for piece in pieces)
    answers = [answer.strip().removeprefix("ASSISTANT: ") for answer in text.split("\0") if answer]
    assert answers == [f"yes{end}", f"<b>{end}"]


WITHOUT_END = {
    "qwen1.5": """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}{%
        if not loop.last %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}{{
        '<|im_start|>assistant\n' if add_generation_prompt }}""",
    "deci": """{% for m in messages %}{{ '### ' + m['role'] + ':\n' + m['content'] + '\n' }}{% endfor %}{{
        '### assistant:\n' if add_generation_prompt }}""",
    "marked": """{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{%
        if m['role'] == 'user' %}{{ m['content'] }}{%
        else %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endif %}{{ '<|end|>' }}{% endfor %}{{
        '<|assistant|>' if add_generation_prompt }}""",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mistral-v7", ["Aeos_tokenBeos_token", "eos_token", "Ceos_token"]),
        ("deci", ["A", "B", "C"]),
        ("glm4", ["\nA", "\nB<|user|>", "\nC"]),
    ],
)
def test_blank_and_adjacent_answers_are_marked(name, expected):
    format = JinjaChat(template=(LOOKALIKES | WITHOUT_END)[name])
    messages = [
        Message("assistant" if text in ("A", "B", "", "C") else "user", text) for text in (*"xABy", "", *"zC")
    ]
    runs = groupby(format.render(messages, False), lambda piece: piece.is_assistant)
    assert ["".join(piece.text for piece in run) for is_answer, run in runs if is_answer] == expected


@pytest.mark.parametrize("name", [*LOOKALIKES, *PUBLISHED_TEMPLATES, *WITHOUT_END])
@pytest.mark.whole
def test_learned_answers_end_where_generation_stops(tokenizer, name):
    templates = PUBLISHED_TEMPLATES | LOOKALIKES | WITHOUT_END
    format = JinjaChat(template=templates[name])
    talk = to_messages([HELLO, {"role": "assistant", "content": "So."}] * 2)
    encoded = encode_answers(format, tokenizer, talk, [m.role == "assistant" for m in talk])
    runs = groupby(zip(encoded.assistant_mask, encoded.ids, strict=True), lambda pair: pair[0])
    answers = [[i for _, i in run] for is_answer, run in runs if is_answer]
    end_ids, eos = encode_end_tokens(format, tokenizer), tokenizer.eos_id
    expected = {"qwen1.5": "<|im_end|>", "glm4": "<|user|>", "nemotron": "<extra_id_1>", "marked": "<|end|>"}
    assert name not in expected or end_ids == (tokenizer.token_to_id(expected[name]), eos)
    assert {answer.pop() for answer in answers} == {end_ids[0]}
    assert not set(end_ids) & {i for answer in answers for i in answer}
    assert [text.count("So.") for text in tokenizer.decode(answers)] == [1, 1]
