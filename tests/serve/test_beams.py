"""Beams of the service: any end of a conversation, conversations that are not cut, and fewer outputs than
are wished for.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.run.run import Run

ASK = [{"role": "system", "content": "dogs"}, {"role": "user", "content": "d"}]


@pytest.mark.parametrize("beams", [1, 2])
def test_any_end_ends_a_beam(beams: int, maker: Any) -> None:
    """One beam is greedy search, whose third token is made an end in turn."""
    run = maker("decoder")
    engine, eos = run.engine(), run.tokenizer.eos_id
    greedy = engine.submit("a", temperature=0.0, max_new_tokens=8)
    greedy.collect_texts()
    end = greedy.tokens[0][2]
    for ends in ((eos, end), (end, eos), (end,)):
        stream = engine.submit("a", turn_ends=ends, max_new_tokens=8, beam_size=beams)
        stream.collect_texts()
        assert not {end, eos if eos in ends else end} & {*stream.tokens[0][:-1]}
        if beams == 1:
            assert stream.finish_reasons == ["stop"]
            assert stream.tokens[0][:2] == greedy.tokens[0][:2] and len(stream.tokens[0]) == 3


def test_a_conversation_that_fits_is_read_whole(maker: Any, serving: Any) -> None:
    made = maker("decoder")
    settings = made.generation.model_copy(update={"chat": Choice("zephyr")})
    with serving(Run(made.model, made.tokenizer, settings)) as live:
        asked = {"messages": ASK, "truncate": True, "seed": 1}
        lengths = [
            live.ask("/v1/chat/completions", asked | way).json()["usage"]["prompt_tokens"]
            for way in ({}, {"beam_size": 2}, {"beam_size": 2, "max_tokens": 2})
        ]
        assert len(set(lengths)) == 1
        talk = {"input": ASK[1:], "instructions": "dogs", "truncation": "auto", "beam_size": 2}
        assert live.ask("/v1/responses", talk).json()["usage"]["input_tokens"] == lengths[0]


@pytest.mark.parametrize("chat", [False, True])
def test_fewer_outputs_than_are_wished_for_are_those_that_there_are(
    chat: bool, maker: Any, serving: Any
) -> None:
    made = maker("decoder", max_len=200)
    settings = GenerationConfig(chat=Choice("plain"))
    path, given = (
        ("/v1/chat/completions", {"messages": ASK}) if chat else ("/v1/completions", {"prompt": "a"})
    )
    with serving(Run(made.model, made.tokenizer, settings)) as live:
        for choice in (["d"], ["d", "b"]):
            body = given | {"n": 4, "beam_size": 4, "structured_outputs": {"choice": choice}}
            found = live.ask(path, body).json()["choices"]
            texts = [one["message"]["content"] if chat else one["text"] for one in found]
            assert {*texts} == {*choice} and 0 < len(
                texts
            ) <= 4  # a text may be cut into tokens in several ways
            events = [one for event in live.events(path, body) for one in event["choices"]]
            ended = [one["index"] for one in events if one["finish_reason"]]
            assert sorted(ended) == [one["index"] for one in found] == list(range(len(found)))


def test_a_part_that_is_a_word_is_a_mistake(maker: Any, serving: Any) -> None:
    made = maker("decoder")
    settings = made.generation.model_copy(update={"chat": Choice("plain")})
    output = {"type": "function_call_output", "call_id": "x", "output": ["output_text"]}
    with serving(Run(made.model, made.tokenizer, settings)) as live:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": ["text"]}]}),
            ("/v1/responses", {"input": [{"role": "user", "content": ["input_text"]}]}),
            ("/v1/responses", {"input": [output]}),
        ):
            found = live.ask(path, body)
            assert found.status_code == 400, found.text
            assert "this model supports text only" in found.json()["error"]["message"]


def test_what_says_nothing_of_its_format_keeps_the_form_of_the_run(maker: Any, serving: Any) -> None:
    made = maker("decoder", max_len=200)
    settings = GenerationConfig(chat=Choice("plain"), grammar=Choice("regex", pattern="dogs"))
    with serving(Run(made.model, made.tokenizer, settings)) as live:
        for text in ({}, {"text": {"verbosity": "low"}}, {"text": None}):
            found = live.ask("/v1/responses", {"input": "d", **text}).json()
            assert found["output"][0]["content"][0]["text"] == "dogs", json.dumps(found)
        free = live.ask(
            "/v1/responses", {"input": "d", "seed": 1, "text": {"format": {"type": "text"}}}
        ).json()
        assert free["output"][0]["content"][0]["text"] != "dogs"
