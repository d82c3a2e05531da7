"""Fields of vLLM, llama.cpp and others: supported, taken at a value without effect, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.conftest import living, make
from tests.serve.refusals_helpers import refused
from tests.serve.tool_calls import TOOLS
from tests.serve.tool_calls import make as make_chat

from polyhead.run.run import Run

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
ASK = [{"role": "user", "content": "zwei hunde"}]
GREEDY: dict[str, Any] = {"prompt": "dogs", "temperature": 0, "max_tokens": 12}


def tokens_of(run: Run, prompt: str, count: int, banned: dict[int, int] | None = None) -> list[int]:
    """Greedy tokens by the model alone; ``banned[token]`` is the position before which it may not come."""
    import torch

    ids = run.engine().encode_prompt(prompt)
    start = len(ids)
    while len(ids) < start + count:
        with torch.inference_mode():
            logits = run.model(torch.tensor([ids]))[0, -1].clone()
        for token, position in (banned or {}).items():
            if len(ids) - start < position:
                logits = logits.index_fill(0, torch.tensor([token]), -torch.inf)
        ids.append(int(logits.argmax()))
    return ids[start:]


@pytest.fixture(scope="module")
def live():
    with living(make("decoder")) as found:
        yield found


def test_stop_token_ids_end_a_text_and_are_not_part_of_it(live):
    greedy = tokens_of(live.run, "dogs", 12)
    cut = max(greedy.index(token) for token in greedy)
    stop = greedy[cut]
    assert cut > 0
    choice = live.ask(PATH, GREEDY | {"stop_token_ids": [stop]}).json()
    whole = live.ask(PATH, GREEDY | {"max_tokens": cut}).json()["choices"][0]
    assert choice["choices"][0]["finish_reason"] == "stop" and whole["finish_reason"] == "length"
    assert whole["text"].startswith(choice["choices"][0]["text"].rstrip("\ufffd"))
    assert choice["usage"]["completion_tokens"] == cut + 1
    assert "text" in live.ask(PATH, GREEDY | {"stop_token_ids": []}).json()["choices"][0]
    for wrong in ([10**6], [-1], ["a"], "5", [5] * 65):
        assert refused(live.ask(PATH, GREEDY | {"stop_token_ids": wrong}))["param"] == "stop_token_ids"


def test_the_end_token_ends_no_text_before_min_tokens_or_with_ignore_eos(live):
    run, greedy = live.run, tokens_of(live.run, "dogs", 12)
    eos = run.tokenizer.eos_id
    stop = greedy[2]
    body = GREEDY | {"logit_bias": {str(eos): 100}}  # the end comes at once
    assert live.ask(PATH, body).json()["usage"]["completion_tokens"] == 1
    found = live.ask(PATH, body | {"min_tokens": 5}).json()
    assert found["usage"]["completion_tokens"] == 6 and found["choices"][0]["finish_reason"] == "stop"
    wanted = tokens_of(run, "dogs", 5, {eos: 5})
    found_ids = live.service.engine.submit("dogs", temperature=0, max_new_tokens=12, min_new_tokens=5,
        logit_bias={eos: 100})  # fmt: skip
    found_ids.collect_texts()
    assert found_ids.tokens[0] == [*wanted, eos]
    kept = live.service.engine.submit("dogs", temperature=0, max_new_tokens=9, min_new_tokens=7,
        stop_token_ids=[stop])  # fmt: skip
    kept.collect_texts()
    assert stop not in kept.tokens[0][:7]
    whole = live.ask(PATH, body | {"ignore_eos": True}).json()
    assert whole["usage"]["completion_tokens"] == 12 and whole["choices"][0]["finish_reason"] == "length"
    mixed = body | {"ignore_eos": True, "stop_token_ids": [eos]}
    assert live.ask(PATH, mixed).json()["usage"]["completion_tokens"] == 1
    for change, param in (
        ({"min_tokens": 13}, "min_tokens"), ({"ignore_eos": True, "beam_size": 2}, "ignore_eos"),
        ({"ignore_eos": True, "grammar": 'start: "a"'}, "ignore_eos"), ({"ignore_eos": 1}, "ignore_eos"),
    ):  # fmt: skip
        error = refused(live.ask(PATH, {k: v for k, v in GREEDY.items() if k != "temperature"} | change))
        assert error["param"] == param, error


def test_truncate_prompt_tokens_keeps_the_end_of_the_prompt(live):
    text = "a dog barks . two dogs bark . ein hund bellt ."
    ids = live.run.tokenizer.encode([text])[0]
    for k in (1, 5, 10**6):
        found = live.ask(PATH, {**GREEDY, "prompt": text, "truncate_prompt_tokens": k, "echo": True}).json()
        kept = live.service.engine.encode_prompt(text)[-k:]
        wanted = live.ask(PATH, {**GREEDY, "prompt": kept}).json()
        assert found["choices"][0]["text"] == text + wanted["choices"][0]["text"]
        assert found["usage"]["prompt_tokens"] == len(kept)
    long = "dogs bark " * 60
    assert live.ask(PATH, {**GREEDY, "prompt": long}).status_code == 400
    wanted = live.ask(PATH, {**GREEDY, "prompt": long, "truncate": True}).json()["choices"]
    assert (
        live.ask(PATH, {**GREEDY, "prompt": long, "truncate_prompt_tokens": -1}).json()["choices"] == wanted
    )
    assert refused(live.ask(PATH, GREEDY | {"truncate_prompt_tokens": 0})) and len(ids) > 5


NEUTRAL = {
    "min_tokens": 0, "length_penalty": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0, "repetition_penalty": 1.0,
    "ignore_eos": False, "stop_token_ids": [], "best_of": 1, "use_beam_search": False,
    "early_stopping": False,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "include_stop_str_in_output": False,
    "bad_words": [], "logits_processors": [], "chat_template_kwargs": {}, "frequency_penalty": 0,
    "presence_penalty": 0, "logit_bias": {}, "n": 1, "stop": [], "suffix": "", "echo": False, "stream": False,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("beams", [{}, {"beam_size": 2}])
def test_values_without_effect_are_taken(services, kind, beams):
    body = {"prompt": "dogs", "seed": 3, **beams}
    wanted, found = (services[kind].ask(PATH, one) for one in (body, body | NEUTRAL))
    assert found.status_code == 200, found.text
    assert "x-warnings" not in found.headers
    assert found.json()["choices"] == wanted.json()["choices"]


REFUSED = [
    (PATH, {"use_beam_search": True}, "use_beam_search", "use beam_size"),
    (PATH, {"bad_words": ["a"]}, "bad_words", "remove it"),
    (PATH, {"allowed_token_ids": [5]}, "allowed_token_ids", "remove it"),
    (PATH, {"skip_special_tokens": False}, "skip_special_tokens", "remove it"),
    (PATH, {"include_stop_str_in_output": True}, "include_stop_str_in_output", "remove it"),
    (PATH, {"prompt_logprobs": 1}, "prompt_logprobs", "use echo with logprobs"),
    (PATH, {"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs", "remove it"),
    (CHAT, {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "use truncate"),
    (CHAT, {"chat_template": "{{ x }}"}, "chat_template", "remove it"),
    ("/v1/embeddings", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "use truncate"),
    (PATH, {"structured_outputs": {"regex": "a", "whitespace_pattern": "x"}}, "structured_outputs",
        "whitespace_pattern of structured_outputs is not supported"),
    (PATH, {"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options",
        "continuous_usage_stats of stream_options is not supported"),
]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["lenient", "strict"])
def chatty(request):
    with living(make_chat("chatml", None), strict_fields=request.param) as found:
        yield found


@pytest.mark.parametrize(("path", "fields", "param", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_change_the_answer_is_refused_by_name(chatty, path, fields, param, message):
    needed = {PATH: {"prompt": "a"}, CHAT: {"messages": ASK}, "/v1/embeddings": {"input": "a"}}[path]
    error = refused(chatty.ask(path, needed | fields))
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert message in error["message"]


TOOL = {**TOOLS[1], "odd": 1}
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
INSIDE: list[tuple[str, dict[str, Any], str, str]] = [
    (PATH, {"stream_options": {"include_usge": True}}, "stream_options",
        "'include_usge' of stream_options; did you mean 'include_usage'?"),
    (PATH, {"response_format": {"type": "text", "shema": {}}}, "response_format",
        "'shema' of response_format"),
    (PATH, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "scema": {}}}},
        "response_format", "'scema' of response_format.json_schema; did you mean 'schema'?"),
    (PATH, {"structured_outputs": {"regex": "a", "regexx": "b"}}, "structured_outputs",
        "'regexx' of structured_outputs; did you mean 'regex'?"),
    (CHAT, {"tools": [TOOL]}, "tools", "'odd' of tool 0"),
    (CHAT, {"tools": [{"function": {"name": "now", "parameter": {}}}]}, "tools",
        "'parameter' of the function of tool 0; did you mean 'parameters'?"),
    (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now", "x": 1}}},
        "tool_choice", "'x' of tool_choice.function"),
    (CHAT, {"messages": [*ASK, {"role": "assistant", "tool_calls": [{**CALL, "zzz": 1}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}]}, "messages", "'zzz' of call 0 of message 1"),
    ("/v1/responses", {"text": {"format": {"type": "text", "odd": 1}}}, "text", "'odd' of text.format"),
    ("/v1/responses", {"tools": [{"type": "function", "name": "now", "odd": 1}]}, "tools", "'odd' of tool 0"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param", "message"), INSIDE, ids=range(len(INSIDE)))
def test_unknown_fields_inside_of_objects_are_told_or_refused(chatty, path, fields, param, message):
    needed = {PATH: {"prompt": "a"}, CHAT: {"messages": ASK}, "/v1/responses": {"input": "a"}}[path]
    answer = chatty.ask(path, {"max_tokens": 1, **needed, **fields})
    if chatty.service.strict_fields:
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, "unknown_parameter")
        assert error["message"] == f"unknown field {message}"
    else:
        field, hint = message.split(";")[0], message.partition(";")[2]
        assert answer.status_code == 200, answer.text
        told = answer.headers["x-warnings"]
        assert f"field {field} is ignored" in told and told.endswith(hint or "ignored")


def test_an_ignored_field_of_a_tool_is_not_in_the_prompt(chatty):
    if chatty.service.strict_fields:
        return
    body = {"messages": ASK, "max_tokens": 1}
    sizes = [
        chatty.ask(CHAT, body | {"tools": [tool]}).json()["usage"]["prompt_tokens"]
        for tool in (TOOLS[1], TOOL, {**TOOLS[1], "function": {**TOOLS[1]["function"], "description": "x"}})
    ]
    assert sizes[0] == sizes[1] < sizes[2]


def test_hints_are_given_only_for_near_names(live):
    for name, hint in (("temperatur", "temperature"), ("max_token", "max_tokens"), ("min_length", None),
        ("mirostat_tau", None), ("echoes_of", None)):  # fmt: skip
        told = live.ask(PATH, GREEDY | {name: 1}).headers["x-warnings"]
        assert told == f"field {name!r} is ignored" + (f"; did you mean {hint!r}?" if hint else "")


@pytest.mark.parametrize("rules", ['start: "dogs" | "犬"', 'root ::= "dogs" | "犬"'])
def test_grammars_of_other_servers_are_taken(live, rules):
    pytest.importorskip("llguidance")
    for fields in ({"grammar": rules}, {"structured_outputs": {"grammar": rules}}):
        answer = live.ask(PATH, {"prompt": "a", "seed": 1, **fields}).json()
        assert answer["choices"][0]["text"] in ("dogs", "犬")
    error = refused(live.ask(PATH, {"prompt": "a", "grammar": "root ::= ("}))
    assert error["param"] == "grammar" and "not valid GBNF" in error["message"]
    forced = {"tools": TOOLS, "tool_choice": "required", "grammar": rules}
    with living(make_chat("chatml", None)) as talker:
        error = refused(talker.ask(CHAT, {"messages": ASK, **forced}))
    assert error["param"] == "tool_choice" and "remove grammar" in error["message"]
    both = {"grammar": rules, "response_format": {"type": "json_object"}}
    assert "cannot be combined" in refused(live.ask(PATH, {"prompt": "a", **both}))["message"]
