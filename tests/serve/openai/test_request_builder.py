"""Tests of serve/openai/request_builder.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from polyhead import Choice
from polyhead.generation.chat import parse_conversation
from polyhead.serve.http.limits import Limits
from polyhead.serve.openai.request_builder import _fit_prompt
from polyhead.serve.openai.schemas import CompletionBody

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]


@pytest.mark.acceptance("C5")
def test_lengths_beyond_the_greatest_are_cut_where_no_token_of_the_prompt_is_lost(speaker):
    """That is told in a header; a prompt that is too long is refused."""
    most = speaker.run.config.max_len
    ids = (speaker.run.tokenizer.encode([" ".join(TEXTS)])[0] * 3)[: most + 1]
    for length, wanted, fits in [
        (most - 1, 2, True),
        (most - 1, 3, False),
        (most, 1, True),
        (most, 2, False),
        (most + 1, 1, False),
        (1, most, True),
        (1, most + 1, False),
    ]:
        answer = speaker.ask("/v1/completions", {"prompt": ids[:length], "max_tokens": wanted, "seed": 1})
        assert answer.status_code == (200 if length <= most else 400), (length, wanted)
        if length > most:
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        elif not fits:
            room = most - length + 1
            told = f"{wanted} output tokens were requested; at most {room} can be generated"
            assert answer.headers["x-warnings"] == told
            alone = speaker.ask("/v1/completions", {"prompt": ids[:length], "max_tokens": room, "seed": 1})
            assert answer.json()["choices"] == alone.json()["choices"]
            assert answer.json()["usage"] == alone.json()["usage"] | {
                "prompt_tokens_details": answer.json()["usage"]["prompt_tokens_details"]
            }
        else:
            assert "x-warnings" not in answer.headers
        further = speaker.ask(
            "/v1/completions", {"prompt": ids[:length], "max_tokens": wanted, "seed": 1, "truncate": True}
        )
        assert further.status_code == 200
        assert further.json()["usage"]["prompt_tokens"] == min(length, most)
    unsaid = speaker.ask("/v1/completions", {"prompt": ids[: most - 3], "seed": 1}).json()
    assert unsaid["usage"]["total_tokens"] <= most + 1


@pytest.mark.parametrize(
    ("way", "read"), [({"temperature": 0}, 48), ({"beam_size": 2, "min_tokens": 15}, 34)]
)
def test_a_cut_prompt_leaves_room_where_no_length_is_said(speaker, way, read):
    """For the usual 15 tokens: beams read as many fewer of 48; drawn text goes on without its beginning."""
    ids = (speaker.run.tokenizer.encode([" ".join(TEXTS)])[0] * 9)[:300]
    answer = speaker.ask("/v1/completions", {"prompt": ids, **way, "truncate": True}).json()
    assert answer["usage"]["prompt_tokens"] == read and answer["usage"]["completion_tokens"] > 1
    asked = {"prompt": ids[-read:], **way, "max_tokens": 15, "truncate": True}
    assert answer["choices"] == speaker.ask("/v1/completions", asked).json()["choices"]


@pytest.mark.parametrize(
    ("length", "read", "said"), [(10, 10, 39), (24, 24, 25), (30, 25, 24), (300, 25, 24)]
)
def test_where_the_usual_length_is_all_a_model_reads_half_of_it_is_left(length, read, said):
    engine = SimpleNamespace(max_len=48, config=SimpleNamespace(max_new_tokens=200))
    service = SimpleNamespace(limits=SimpleNamespace(max_tokens=100))
    body = CompletionBody.model_validate({"prompt": "", "beam_size": 2, "truncate": True})
    ids = list(range(length))
    assert _fit_prompt(service, engine, body, ids, {}) == (ids[-read:], {"max_new_tokens": said})


@pytest.mark.parametrize("length", [20, 29, 30, 48, 300])
def test_a_prompt_is_cut_so_that_beams_have_room_for_what_is_wanted(speaker, length):
    """29 tokens and 20 new ones, of which the last is not read, are the 48 that the model reads."""
    ids = (speaker.run.tokenizer.encode([" ".join(TEXTS)])[0] * 9)[:length]
    wish = {"beam_size": 2, "max_tokens": 20, "min_tokens": 20, "truncate": True}
    answer = speaker.ask("/v1/completions", {"prompt": ids, **wish}).json()
    assert answer["usage"]["prompt_tokens"] == min(length, 29)
    assert answer["usage"]["completion_tokens"] == 20
    alone = speaker.ask("/v1/completions", {"prompt": ids[-29:], **wish, "truncate": False}).json()
    assert answer["choices"] == alone["choices"]
    too_many = speaker.ask("/v1/completions", {"prompt": ids, **wish, "max_tokens": 49, "min_tokens": 1})
    if length > 48:
        assert too_many.json()["error"]["code"] == "context_length_exceeded"
    else:
        told = f"49 output tokens were requested; at most {49 - length} can be generated"
        assert too_many.headers["x-warnings"] == told
        assert too_many.json()["usage"]["prompt_tokens"] == length


@pytest.mark.parametrize("most", [4097, 100_000, 2**31 - 1])
def test_what_clients_ask_for_by_default_is_answered_on_every_route(serving, maker, speaker, most):
    """The service's own limit counts too; the warning is the first, so that no other hides it."""
    odd = {f"odd{i}": 1 for i in range(9)}
    with serving(maker("decoder"), chat=Choice("plain"), limits=Limits(max_tokens=30)) as live:
        talk = [{"role": "user", "content": "dogs"}]
        read = len(live.service.chat.encode_prompt(parse_conversation(talk)))
        for path, body, name in (
            ("completions", {"prompt": [5] * 10}, "max_tokens"),
            ("chat/completions", {"messages": talk}, "max_tokens"),
            ("chat/completions", {"messages": talk, "truncate": True}, "max_completion_tokens"),
            ("responses", {"input": talk}, "max_output_tokens"),
        ):
            answer = live.ask(f"/v1/{path}", {**body, **odd, "seed": 1, name: most})
            room = 30 if path == "completions" else min(30, 49 - read)
            told = f"{most} output tokens were requested; at most {room} can be generated; "
            assert answer.status_code == 200 and answer.headers["x-warnings"].startswith(told)
    with serving(maker("encoder-decoder")) as live:
        for way in ({"beam_size": 2}, {"temperature": 0}):
            body = {"input": "ein hund bellt .", **way}
            answer = live.ask("/v1/translations", body | {"max_tokens": most})
            assert "at most 48 can be generated" in answer.headers["x-warnings"]
            within = live.ask("/v1/translations", body | {"max_tokens": 48})
            assert within.json()["data"] == answer.json()["data"] and "x-warnings" not in within.headers


def test_sixteen_stop_strings_of_256_characters_are_taken(speaker):
    body = {"prompt": "a dog barks .", "seed": 7, "max_tokens": 12}
    stops = [f"{i:x}" * 256 for i in range(15)]
    wanted = speaker.ask("/v1/completions", body).json()["choices"][0]["text"]
    last = max((letter for letter in wanted if letter.isascii() and letter.isalpha()), key=wanted.index)
    (choice,) = speaker.ask("/v1/completions", body | {"stop": [*stops, last]}).json()["choices"]
    assert (
        choice["text"] == wanted[: wanted.index(last)].rstrip("\ufffd") and choice["finish_reason"] == "stop"
    )
    error = speaker.ask("/v1/completions", body | {"stop": [*stops, "a", "b"]}).json()["error"]
    assert error["param"] == "stop" and "at most 16 texts of 1 to 256 characters" in error["message"]


def test_twenty_alternatives_are_the_likeliest_of_a_plain_softmax(speaker):
    prompt = speaker.run.tokenizer.encode(["a dog"])[0]
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 1, "logprobs": 20}
    (tops,) = speaker.ask("/v1/completions", body).json()["choices"][0]["logprobs"]["top_logprobs"]
    with torch.inference_mode():
        logits = speaker.run.model(torch.tensor([prompt]))[0, -1]
    expected = logits.log_softmax(-1).topk(20).values
    assert torch.allclose(torch.tensor(sorted(tops.values(), reverse=True)), expected, atol=1e-4)
