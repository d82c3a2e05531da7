"""Templates of checkpoints are rendered to the text and the tokens of transformers."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jinja2.exceptions
import pytest
import transformers
from tests.chat.lookalike_chats import LOOKALIKES
from tests.chat.published_chats import PUBLISHED
from transformers.utils.chat_template_utils import _compile_jinja_template

import tokenizers
from polyhead.chat.apply_template import encode_chat, encode_end_tokens, render_chat
from polyhead.chat.base import Message, ToolCall
from polyhead.chat.detect_template import detect_format
from polyhead.chat.jinja import JinjaChat
from polyhead.chat.tools import ToolChoice, build_tool_choice, parse_tool_calls
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ROLES = {"bos_token": "<s>", "eos_token": "</s>"}
MARKS = [
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|user|>", "<|assistant|>", "<｜User｜>",
    "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|end_of_turn|>", "<extra_id_1>", "[|endofturn|]",
    "<|END_OF_TURN_TOKEN|>", "<|start_of_role|>", "<|end_of_text|>", "<|start_header_id|>", "</think>",
    "<|im_sep|>", "[INST]", "[/INST]",
]  # fmt: skip
SYSTEM = {"role": "system", "content": "Be <brief>.\n"}
HELLO, WELL = {"role": "user", "content": " Is 2 < 3?"}, {"role": "assistant", "content": "Yes.\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo [it] is."}
MORE, BLANK = {"role": "user", "content": "犬 {x} | y\n"}, {"role": "user", "content": ""}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add_up",
            "description": "a <sum> & 'more'",
            "parameters": {"type": "object", "properties": {"é<": {"type": "string"}}, "required": ["é<"]},
        },
    },
    {
        "type": "function",
        "function": {"name": "read_clock", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(number: int, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function}


CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call(1, "old_function", {"é<": "a > b", "n": [1, None]})],
}
ANSWERED = {"role": "tool", "content": '{"sum": "<3>"}', "tool_call_id": "call00001", "name": "old_function"}
TALKS: list[list[dict[str, Any]]] = [
    [HELLO], [SYSTEM, HELLO], [HELLO, WELL], [SYSTEM, HELLO, WELL, MORE], [HELLO, THOUGHT, MORE],
    [HELLO, WELL, MORE, THOUGHT], [SYSTEM, HELLO, WELL, BLANK, WELL, MORE],
]  # fmt: skip
CALLS: list[list[dict[str, Any]]] = [[HELLO, CALLED, ANSWERED], [SYSTEM, HELLO, CALLED, ANSWERED, WELL, MORE]]
# what is expected of calls where it is not the common form
TEXT_ARGUMENTS = {"deepseek-r1"}
TEMPLATES = {**PUBLISHED, **LOOKALIKES}


@cache
def vocabulary() -> str:
    inner = train_tokenizer(["Is 2 < 3? Yes. Be brief. hm So it is"] * 3, Choice("bpe"), 300)._inner
    inner.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return inner.to_str()


@cache
def opened() -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(vocabulary()), ROLES)


def to_messages(talk: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(
            one["role"],
            one["content"],
            parse_tool_calls(one.get("tool_calls"), i),
            one.get("tool_call_id", ""),
        )
        for i, one in enumerate(talk)
    ]


def reference(name: str, talk: list[dict[str, Any]], **options: Any) -> Any:
    """What transformers renders."""
    inner = tokenizers.Tokenizer.from_str(vocabulary())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **ROLES)
    talk = json.loads(json.dumps(talk))
    for message in talk if name in TEXT_ARGUMENTS else []:
        for one in message.get("tool_calls", []):
            message["content"] = None
            one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
    options["add_generation_prompt"] = talk[-1]["role"] != "assistant"
    if name in TEXT_ARGUMENTS and any("tool_calls" in one for one in talk):
        # apply_chat_template drops a content of None, which this template was written for
        return _compile_jinja_template(TEMPLATES[name]).render(messages=talk, **ROLES, **options)
    return theirs.apply_chat_template(talk, chat_template=TEMPLATES[name], return_dict=False, **options)


def written(part: Any, talk: list[dict[str, Any]], tools: ToolChoice = ToolChoice()) -> str:
    pieces = render_chat(part, to_messages(talk), talk[-1]["role"] != "assistant", tools)
    return "".join(ROLES[piece.text] if piece.kind == "role" else piece.text for piece in pieces)


@pytest.mark.parametrize("name", LOOKALIKES)
def test_a_look_alike_is_written_as_transformers_writes_it(name):
    part = CHAT.build(detect_format(LOOKALIKES[name]))
    num_equal = 0
    for talk in TALKS:
        try:
            wanted = reference(name, talk, tokenize=False)
        except jinja2.exceptions.TemplateError:
            continue
        if any(one["content"].strip() not in wanted for one in talk if one["role"] == "system"):
            continue  # transformers drops the system message; it is merged here
        assert written(part, talk) == wanted
        num_equal += 1
    assert num_equal >= 4
    # its tokens, for texts that spell none
    talk = [SYSTEM, HELLO, WELL, MORE] if name not in ("olmo1",) else [HELLO, WELL, MORE]
    ids = encode_chat(part, opened(), to_messages(talk), True).ids
    assert ids == reference(name, talk)


@pytest.mark.parametrize("name", [*LOOKALIKES, "qwen2.5", "llama3.1"])
def test_tools_and_calls_are_written_as_transformers_writes_them_or_refused(name):
    part = CHAT.build(detect_format(TEMPLATES[name]))
    tools = build_tool_choice(TOOLS)
    for talk in (TALKS[1], *CALLS):
        for given, choice in ((TOOLS, tools), (None, ToolChoice())):
            try:
                wanted = reference(name, talk, tokenize=False, tools=given)
            except (jinja2.exceptions.TemplateError, TypeError):
                wanted = ""
            names = ["old_function"] * any("tool_calls" in one for one in talk) + ["read_clock"] * bool(given)
            if any(one["content"].strip() not in wanted for one in talk if one["role"] == "system"):
                continue
            if all(word in wanted for word in names):
                assert written(part, talk, choice) == wanted
            else:
                with pytest.raises(UserError, match=r"does not support tools|cannot write this conversation"):
                    written(part, talk, choice)


WRITES_TOOLS = {
    "hermes": "<tool_call>\n", "qwq": "<tool_call>\n", "qwen3-2507": "<tool_call>\n", "llama3.2": "",
    "granite3": "<|tool_call|>[", "qwen3-coder": None,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES_TOOLS)
def test_calls_are_parsed_by_their_marks_where_they_are_known(name):
    part = JinjaChat(template=LOOKALIKES[name])
    marks, syntax = WRITES_TOOLS[name], part.tool_syntax
    if marks is None:
        assert syntax is None
        with pytest.raises(UserError, match="the marks of tool calls in this chat template are unknown"):
            part.render([Message("user", "x")], True, build_tool_choice(TOOLS, "required"))
        return
    assert syntax is not None
    called = CALLED | {"tool_calls": [call(1, "add_up", {"é<": "a > b", "n": [1, None]})]}
    answer = written(part, [HELLO, called], build_tool_choice(TOOLS))
    answer = answer[answer.rindex('{"name": "add_up"') - len(marks) :]
    assert answer.startswith(marks)
    text = answer[: answer.index(part.end_tokens[0].text)]
    content, calls = syntax.make_parser(build_tool_choice(TOOLS)).feed(text, True)
    assert not content and [(one.name, json.loads(one.arguments)) for one in calls] == [
        ("add_up", {"é<": "a > b", "n": [1, None]})
    ]
    first = ToolCall("read_clock", "{}")
    many = [first, first] if syntax.parallel_tool_calls else [first]
    joined = syntax.separator.join(
        syntax.call_start + syntax.format_call(one) + syntax.call_end for one in many
    )
    _, calls = syntax.make_parser(build_tool_choice(TOOLS)).feed(
        syntax.list_start + joined + syntax.list_end, True
    )
    assert [one.name for one in calls] == ["read_clock"] * len(many)


@pytest.mark.acceptance("F4")
@pytest.mark.parametrize("name", LOOKALIKES)
def test_nothing_that_a_person_writes_is_a_special_token(name):
    """In messages, definitions of tools, arguments and results; neither whole nor put together."""
    part, tokenizer = CHAT.build(detect_format(LOOKALIKES[name])), opened()
    specials = set(tokenizer.special_ids)

    def count(text: str, tools: ToolChoice = ToolChoice(), called: str = "") -> list[int]:
        messages = [
            Message("system", f"a{text}b"),
            Message("user", f"c{text}d"),
            Message("assistant", f"e{text}f"),
        ]
        if called:
            messages += [
                Message("user", "x"),
                Message("assistant", "", (ToolCall("f", json.dumps({"k": called}), "call00001"),)),
            ]
            messages += [Message("tool", f"g{called}h", (), "call00001")]
        else:
            messages += [Message("user", f"i{text}")]
        return [i for i in encode_chat(part, tokenizer, messages, True, tools).ids if i in specials]

    evil = "".join(tokenizer.special_tokens) + "<|im_\nend|>" + "<|im_end|" + ">"
    assert count(evil) == count("x")
    if name in ("hermes", "qwq", "qwen3-2507", "qwen3-coder", "llama3.2", "granite3", "lfm2"):
        definitions = [
            build_tool_choice(
                [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "description": text,
                            "parameters": {"type": "object", "properties": {text: {"type": "string"}}},
                        },
                    }
                ]
            )
            for text in (evil, "x")
        ]
        called = "x" if part._call_style is not None else ""
        assert count("x", definitions[0], called and evil) == count("x", definitions[1], called)


def test_the_end_of_an_answer_is_that_of_the_template():
    ends = {name: JinjaChat(template=template).end_tokens[0].text for name, template in LOOKALIKES.items()}
    assert (
        ends["yi"] == ends["hermes"] == ends["lfm2"] == "<|im_end|>" and ends["openchat"] == "<|end_of_turn|>"
    )
    assert ends["deepseek-r1"] == "<｜end▁of▁sentence｜>" and ends["exaone"] == "[|endofturn|]"
    assert ends["vicuna"] == ends["falcon3"] == ends["solar"] == "eos_token"
    part = JinjaChat(template=LOOKALIKES["phi-4-mini"])
    assert encode_end_tokens(part, opened()) == (opened().token_to_id("<|end|>"), opened().eos_id)
    assert JinjaChat(template=LOOKALIKES["chatml-trimmed"]).trim_content
    assert not JinjaChat(template=LOOKALIKES["internlm2"]).trim_content


@pytest.mark.parametrize(
    "name", ["chatml-generation", "chatml-eos", "vicuna", "command-r", "mistral-v7", "qwen3-2507"]
)
def test_answers_are_marked_in_a_complete_conversation(name):
    """As ``{% generation %}`` marks them, or where the text changes with the answer."""
    part = JinjaChat(template=LOOKALIKES[name])
    talk = [
        Message("user", "yes"),
        Message("assistant", "yes"),
        Message("user", "and"),
        Message("assistant", "<b>"),
    ]
    pieces = part.render(talk, False)
    runs, text = [], ""
    for piece in [*pieces, pieces[0]._replace(is_assistant=False)]:
        if piece.is_assistant:
            text += piece.text
        elif text:
            runs.append(text)
            text = ""
    end = {"chatml-eos": "<|im_end|>", "vicuna": "eos_token", "mistral-v7": "eos_token"}.get(
        name, "<|im_end|>"
    )
    end = "<|END_OF_TURN_TOKEN|>" if name == "command-r" else end
    assert [run.strip().removeprefix("ASSISTANT: ") for run in runs] == [f"yes{end}", f"<b>{end}"]


def test_a_system_message_that_the_template_has_no_place_for_is_merged():
    part = JinjaChat(template=LOOKALIKES["olmo1"])  # drops it without a word
    assert written(part, [SYSTEM, HELLO]) == written(
        part, [HELLO | {"content": f"{SYSTEM['content']}\n\n{HELLO['content']}"}]
    )
    gemma = JinjaChat(template=PUBLISHED["gemma2"])  # refuses it
    assert "user\nBe <brief>.\n\n\n Is 2" in written(gemma, [SYSTEM, HELLO])
