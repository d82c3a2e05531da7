"""Fields of vLLM, llama.cpp and others: supported, accepted at a value without effect, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.conftest import get_error
from tests.serve.tool_call_helpers import QUESTION, TOOLS

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
GREEDY: dict[str, Any] = {"prompt": "dogs", "temperature": 0, "max_tokens": 12}


def greedy_tokens(run, prompt, count, first_positions=None):
    """Greedy tokens by the model alone; ``banned[token]`` is the position before which it may not come."""
    ids = run.engine().encode_prompt(prompt)
    start = len(ids)
    while len(ids) < start + count:
        with torch.inference_mode():
            logits = run.model(torch.tensor([ids]))[0, -1].tolist()
        for token, position in (first_positions or {}).items():
            if len(ids) - start < position:
                logits[token] = -float("inf")
        ids.append(logits.index(max(logits)))
    return ids[start:]


def test_stop_token_ids_end_text_before_the_token(client):
    greedy = greedy_tokens(client.run, "dogs", 12)
    end = max(greedy.index(token) for token in greedy)
    assert end > 0
    answer = client.ask(PATH, GREEDY | {"stop_token_ids": [greedy[end]]}).json()
    (cut,) = client.ask(PATH, GREEDY | {"max_tokens": end}).json()["choices"]
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], cut["finish_reason"]) == ("stop", "length")
    assert cut["text"].startswith(choice["text"].rstrip("\ufffd"))
    assert answer["usage"]["completion_tokens"] == end + 1
    assert client.ask(PATH, GREEDY | {"stop_token_ids": []}).status_code == 200
    for value in ([10**6], [-1], ["a"], "5", [5] * 65):
        assert get_error(client.ask(PATH, GREEDY | {"stop_token_ids": value}))["param"] == "stop_token_ids"


def test_min_tokens_and_ignore_eos_postpone_the_end(client):
    run, eos = client.run, client.run.tokenizer.eos_id
    body = GREEDY | {"logit_bias": {str(eos): 100}}  # the end comes at once

    def complete(**fields):
        answer = client.ask(PATH, body | fields).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert complete() == (1, "stop")
    assert complete(min_tokens=5) == (6, "stop")
    assert complete(ignore_eos=True) == (12, "length")
    assert complete(ignore_eos=True, stop_token_ids=[eos]) == (1, "stop")

    def submit(**options):
        output = client.service.engine.submit("dogs", temperature=0, **options)
        output.collect_texts()
        return list(output.tokens[0])

    tokens = submit(max_new_tokens=12, min_new_tokens=5, logit_bias={eos: 100})
    assert tokens == [*greedy_tokens(run, "dogs", 5, {eos: 5}), eos]
    stop = greedy_tokens(run, "dogs", 12)[2]
    assert stop not in submit(max_new_tokens=9, min_new_tokens=7, stop_token_ids=[stop])[:7]
    without_temperature = {"prompt": "dogs", "max_tokens": 12}
    for fields, param in (
        ({"min_tokens": 13}, "min_tokens"),
        ({"ignore_eos": True, "beam_size": 2}, "ignore_eos"),
        ({"ignore_eos": True, "grammar": 'start: "a"'}, "ignore_eos"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ):
        assert get_error(client.ask(PATH, without_temperature | fields))["param"] == param


def test_truncate_prompt_tokens_keeps_the_prompt_end(client):
    text = "a dog barks . two dogs bark . ein hund bellt ."
    for k in (1, 5, 10**6):
        body = GREEDY | {"prompt": text, "truncate_prompt_tokens": k, "echo": True}
        answer = client.ask(PATH, body).json()
        ids = client.service.engine.encode_prompt(text)[-k:]
        expected = client.ask(PATH, GREEDY | {"prompt": ids}).json()["choices"][0]["text"]
        assert answer["choices"][0]["text"] == text + expected
        assert answer["usage"]["prompt_tokens"] == len(ids)
    long = GREEDY | {"prompt": "dogs bark " * 60}
    expected = client.ask(PATH, long | {"truncate": True}).json()["choices"]
    for k in (-1, client.run.config.max_len):
        assert client.ask(PATH, long | {"truncate_prompt_tokens": k}).json()["choices"] == expected
    for body in (long, GREEDY | {"truncate_prompt_tokens": 0}):
        assert get_error(client.ask(PATH, body))
    maximum = client.run.config.max_len
    for k in (maximum + 1, 1024):
        error = get_error(client.ask(PATH, long | {"truncate_prompt_tokens": k}))
        message = f"truncate_prompt_tokens is {k}; the model's maximum is {maximum}: send -1 "
        assert error["message"].startswith(message) and error["param"] == "truncate_prompt_tokens"


def test_truncated_prompts_keep_the_token_before_texts(client, monkeypatch):
    engine, begin = client.service.engine, 1
    monkeypatch.setattr(engine, "tokenizer", engine.tokenizer.with_template([begin], []))
    ids = [begin, *engine.tokenizer.encode(["a dog barks . two dogs bark . " * 9])[0]]
    options = GREEDY | {"echo": True, "logprobs": 1, "max_tokens": 1}
    for fields, n in (({"truncate_prompt_tokens": 5}, 5), ({"truncate": True}, engine.max_len - 1)):
        bodies = (fields | {"prompt": ids}, {"prompt": [begin, *ids[1 - n :]]}, {"prompt": ids[-n:]})
        choices = [client.ask(PATH, options | body).json()["choices"][0] for body in bodies]
        tokens, expected, other = (choice["logprobs"]["tokens"] for choice in choices)
        assert tokens == expected != other


NEUTRAL = json.loads((Path(__file__).parent / "neutral_values.json").read_text())


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("options", [{}, {"beam_size": 2}], ids=str)
def test_neutral_values_have_no_effect(clients, kind, options):
    body = {"prompt": "dogs", "seed": 3, **options}
    expected, answer = (clients[kind].ask(PATH, fields) for fields in (body, body | NEUTRAL))
    assert answer.status_code == 200, answer.text
    assert "x-warnings" not in answer.headers
    assert answer.json()["choices"] == expected.json()["choices"]


def test_ignored_key_of_tool_is_not_in_prompt(fields_client):
    if fields_client.service.strict_fields:
        return
    described_tool = {**TOOLS[1], "function": {**TOOLS[1]["function"], "description": "x"}}
    tools = (TOOLS[1], TOOLS[1] | {"odd": 1}, described_tool)
    bodies = ({"messages": QUESTION, "max_tokens": 1, "tools": [tool]} for tool in tools)
    counts = [fields_client.ask(CHAT, body).json()["usage"]["prompt_tokens"] for body in bodies]
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize("grammar", ['start: "dogs" | "犬"', 'root ::= "dogs" | "犬"'], ids=["lark", "gbnf"])
def test_grammars_of_other_servers_are_supported(client, fields_client, grammar):
    body = {"prompt": "a", "seed": 1}
    for fields in ({"grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
        assert client.ask(PATH, body | fields).json()["choices"][0]["text"] in ("dogs", "犬")
    error = get_error(client.ask(PATH, body | {"grammar": "root ::= ("}))
    assert error["param"] == "grammar" and "not valid GBNF" in error["message"]
    chat = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", "grammar": grammar}
    error = get_error(fields_client.ask(CHAT, chat))
    assert error["param"] == "tool_choice" and "remove grammar" in error["message"]
    both = {"grammar": grammar, "response_format": {"type": "json_object"}}
    assert "cannot be combined" in get_error(client.ask(PATH, body | both))["message"]
