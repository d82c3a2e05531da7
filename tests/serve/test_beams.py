"""Beam search over HTTP: ends of a conversation, uncut conversations, and fewer outputs than requested."""

import pytest
from tests.serve.conftest import build_run, serve_run, with_generation

from polyhead.core.choice import Choice

QUESTION = [{"role": "system", "content": "dogs"}, {"role": "user", "content": "d"}]
CHAT = "/v1/chat/completions"


def test_conversation_that_fits_is_not_truncated():
    with serve_run(with_generation(build_run("decoder"), chat=Choice("zephyr"))) as client:
        body = {"messages": QUESTION, "truncate": True, "seed": 1}
        options = ({}, {"beam_size": 2}, {"beam_size": 2, "max_tokens": 2})
        usages = [client.ask(CHAT, body | one).json()["usage"] for one in options]
        assert len({usage["prompt_tokens"] for usage in usages}) == 1


@pytest.mark.parametrize("beam_size", [1, 2])
def test_any_turn_end_ends_a_beam(runs, beam_size):
    """With one beam, greedy search, whose third token is made an end."""
    engine, eos = runs["decoder"].engine(), runs["decoder"].tokenizer.eos_id
    greedy = engine.submit("a", temperature=0.0, max_new_tokens=8)
    greedy.collect_texts()
    end = greedy.tokens[0][2]
    for ends in ((eos, end), (end, eos), (end,)):
        stream = engine.submit("a", turn_ends=ends, max_new_tokens=8, beam_size=beam_size)
        stream.collect_texts()
        assert not set(ends) & {*stream.tokens[0][:-1]}
        result = (stream.finish_reasons, stream.tokens[0][:2], len(stream.tokens[0]))
        assert beam_size > 1 or result == (["stop"], greedy.tokens[0][:2], 3)


@pytest.mark.parametrize("chat", [False, True])
def test_grammar_with_few_texts_gives_fewer_outputs(chat_client, chat):
    path, prompt = (CHAT, {"messages": QUESTION}) if chat else ("/v1/completions", {"prompt": "a"})
    for texts in (["d"], ["d", "b"]):
        body = prompt | {"n": 4, "beam_size": 4, "structured_outputs": {"choice": texts}}
        choices = chat_client.ask(path, body).json()["choices"]
        outputs = [choice["message"]["content"] if chat else choice["text"] for choice in choices]
        # a text may be split into tokens in several ways
        assert {*outputs} == {*texts} and 0 < len(outputs) <= 4
        events = [choice for event in chat_client.stream(path, body) for choice in event["choices"]]
        finished = [choice["index"] for choice in events if choice["finish_reason"]]
        indices = [choice["index"] for choice in choices]
        assert sorted(finished) == indices == list(range(len(choices)))
