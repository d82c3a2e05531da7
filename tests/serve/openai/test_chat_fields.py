from tests.serve.openai.chat_helpers import ITEMS
from tests.serve.tool_call_helpers import CALL_FUNCTION, CALL_TEXT, FLAT_TOOLS, TOOLS, to_format

from polyhead.chat.tools import build_tool_choice
from polyhead.generation.chat import parse_conversation
from polyhead.serve.openai.chat_fields import parse_items

PATH = "/v1/responses"
USER = ITEMS[0]
TWO, DOGS = ({"role": "assistant", "content": text} for text in ("two", " dogs"))
CALL = {"type": "function_call", "name": "now", "arguments": "{}"}
CALLS = [CALL | {"call_id": f"call0000{i}"} for i in range(3)]


def test_text_and_calls_are_one_message():
    messages = parse_items([USER, TWO, CALLS[1], DOGS, CALLS[2], USER, TWO, DOGS, USER])
    text = USER["content"]
    assert [message.content for message in messages] == [text, "two dogs", text, "two", " dogs", text]
    assert [call.id for call in messages[1].tool_calls] == ["call00001", "call00002"]
    assert messages.item_indices == (0, 1, 5, 6, 7, 8)
    messages = parse_items([TWO, *CALLS[:2], USER, CALLS[2]])
    calls = [(m.role, m.content, [call.id for call in m.tool_calls]) for m in messages]
    first = ("assistant", "two", ["call00000", "call00001"])
    assert calls == [first, ("user", text, []), ("assistant", "", ["call00002"])]


def test_response_output_is_input_of_the_next_response(tool_client, say):
    session = tool_client.service.chat
    say(tool_client, to_format(session.choice.name, CALL_TEXT))
    output = tool_client.ask(PATH, {"input": "hunde", "tools": FLAT_TOOLS}).json()["output"]
    (call,) = output
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "snow"}
    items = [{"type": "message", "role": "user", "content": "hunde"}, *output, result]
    chat_call = {"id": call["call_id"], "type": "function", "function": CALL_FUNCTION}
    messages = [
        {"role": "user", "content": "hunde"},
        {"role": "assistant", "content": None, "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "snow"},
    ]
    assert parse_items(items) == parse_conversation(messages)
    say(tool_client, "a dog barks .")
    response = tool_client.ask(PATH, {"input": items, "tools": FLAT_TOOLS}).json()
    prompt = session.encode_prompt(parse_conversation(messages), build_tool_choice(TOOLS))
    assert response["usage"]["input_tokens"] == len(prompt)
    assert response["output"][0]["content"][0]["text"] == "a dog barks ."
    items += [*response["output"], {"role": "developer", "content": "dogs"}, {"role": "user", "content": "x"}]
    messages += [{"role": "assistant", "content": "a dog barks ."}, {"role": "system", "content": "dogs"}]
    assert parse_items(items)[:-1] == parse_conversation(messages)
