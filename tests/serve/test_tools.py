"""Tool calls over HTTP: as OpenAI's client sends and reads them, and as the run makes them."""

import json
import re

import pytest
from tests.serve.conftest import get_error, serve_run
from tests.serve.tool_call_helpers import CALL_NOW, CALL_TEXT, QUESTION, TOOLS, build_tool_run, to_format

from polyhead.chat.base import build_tool_choice
from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation

PATH = "/v1/chat/completions"


def call_text(client):
    return to_format(client.service.chat.choice.name, CALL_TEXT)


def test_openai_client_calls_tool_and_sends_result(tool_client, say):
    completions = tool_client.openai().chat.completions
    messages = [{"role": "system", "content": "dogs"}, *QUESTION]
    options = {"model": "tiny", "tools": TOOLS}
    say(tool_client, call_text(tool_client))
    answer = completions.create(messages=messages, tool_choice="auto", **options).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"place": "Rome", "days": 2}
    result = {"role": "tool", "tool_call_id": call.id, "content": "snow <|im_end|>"}
    messages += [answer.message, result]
    say(tool_client, "a dog barks .")
    completion = completions.create(messages=messages, **options)
    message = completion.choices[0].message
    assert message.content == "a dog barks ." and not message.tool_calls

    def encode(result):
        call_message = answer.message.model_dump(include={"role", "content", "tool_calls"})
        conversation = parse_conversation([*messages[:2], call_message, result])
        return list(tool_client.service.chat.encode_prompt(conversation, build_tool_choice(TOOLS)))

    assert completion.usage.prompt_tokens == len(encode(result))
    special = set(tool_client.run.tokenizer.special_ids)
    expected = [i for i in encode(result | {"content": "snow"}) if i in special]
    assert [i for i in encode(result) if i in special] == expected
    say(tool_client, call_text(tool_client))
    with completions.stream(messages=messages, **options) as stream:
        (last,) = stream.get_final_completion().choices
    function = last.message.tool_calls[0].function
    assert (last.finish_reason, function.name) == ("tool_calls", "weather")
    assert json.loads(function.arguments) == {"place": "Rome", "days": 2}


def test_run_calls_tools_as_its_service_does(tool_client, say):
    session, text = tool_client.run.chat_session(), call_text(tool_client)
    for tool_choice in ("required", CALL_NOW):
        options = {"tools": TOOLS, "tool_choice": tool_choice, "seed": 4}
        body = {"messages": QUESTION, "max_tokens": 60, **options}
        message = tool_client.ask(PATH, body).json()["choices"][0]["message"]
        answer = session.reply(QUESTION, max_new_tokens=60, **options)
        calls = [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
        assert calls == [call["function"] for call in message.get("tool_calls", [])]
    say(tool_client, text)
    answer = session.reply(QUESTION, tools=TOOLS)
    assert (answer.role, answer.content) == ("assistant", "")
    assert [call.name for call in answer.tool_calls] == ["weather"]
    say(tool_client, "snow")
    result = {"role": "tool", "content": "snow", "tool_call_id": answer.tool_calls[0].id}
    assert session.reply([*QUESTION, answer, result], tools=TOOLS).content == "snow"
    say(tool_client, text)
    assert tool_client.run.chat(QUESTION, tools=TOOLS) == text
    say(tool_client, text)
    assert session.reply(QUESTION).tool_calls == ()


def test_unusable_schemas_and_styles_are_refused(tool_client):
    tools = [*TOOLS, {"type": "function", "function": {"name": "f", "parameters": {"required": "x"}}}]
    with pytest.raises(UserError, match="tools: cannot be used as a grammar: f: failed to compile"):
        tool_client.run.chat_session().reply(QUESTION, tools=tools, tool_choice="required")
    with serve_run(build_tool_run("mistral", True, style="v1")) as client:
        error = get_error(client.ask(PATH, {"messages": QUESTION, "tools": TOOLS}))
        assert error["param"] == "tools" and "does not support tools in the style 'v1'" in error["message"]


@pytest.mark.parametrize("options", [{"seed": 4}, {"beam_size": 2}], ids=str)
@pytest.mark.parametrize("chat", ["chatml", "mistral"])
def test_required_call_begins_with_the_special_mark(chat, options):
    run = build_tool_run(chat, True)
    session = run.chat_session()
    tools = build_tool_choice(TOOLS, CALL_NOW, False)
    request = session.prepare_request(parse_conversation(QUESTION), tools, max_new_tokens=20, **options)
    stream = run.engine().start_request(request)
    stream.collect_texts()
    mark = {"chatml": "<tool_call>", "mistral": "[TOOL_CALLS]"}[chat]
    assert stream.tokens[0][0] == run.tokenizer.token_to_id(mark)


def test_tools_count_as_the_model_reads_them(tool_client):
    """Llama reads each number of such a list in a line of its own, after many blanks."""
    nested_list = [1] * 20
    for _ in range(30):
        nested_list = [nested_list]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": nested_list}}}
    answer = tool_client.ask(PATH, {"messages": QUESTION, "tools": [tool], "max_tokens": 1})
    if tool_client.service.chat.choice.name == "llama3":
        error = get_error(answer)
        assert (error["param"], error["code"]) == ("tools", "text_too_long")
        pattern = r"tools: in the model's format .* have \d{4,5} characters; the maximum is 2000"
        assert re.fullmatch(pattern, error["message"])
    else:
        assert answer.status_code == 200
