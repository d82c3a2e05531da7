"""Outputs of a model that are NaN or infinite are status 500 on every route, and health says so."""

from __future__ import annotations

import pytest
import torch
from tests.serve.conftest import living, make

from polyhead import Choice
from polyhead.core.errors import NOT_FINITE

BODIES = {
    "decoder": {
        "/v1/completions": {"prompt": "a dog", "max_tokens": 3},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "dogs"}], "max_tokens": 3},
        "/v1/responses": {"input": "dogs", "max_output_tokens": 3},
        "/v1/score": {"input": ["a dog"]},
        "/v1/embeddings": {"input": "dogs"},
    },
    "encoder-decoder": {
        "/v1/translations": {"input": "ein hund"},
        "/v1/completions": {"prompt": "ein hund"},
        "/v1/score": {"input": ["ein hund"], "target": ["a dog"]},
    },
    "encoder": {"/v1/embeddings": {"input": "dogs"}, "/v1/fill-mask": {"input": "a <mask> barks ."}},
    "classifier": {"/v1/classify": {"input": ["dogs"]}, "/v1/embeddings": {"input": "dogs"}},
}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", BODIES)
def test_every_route_answers_500_and_health_says_so(kind: str, value: float) -> None:
    run = make(kind)
    weight = next(run.model.parameters())
    original = weight.detach().clone()
    with living(run, **({"chat": Choice("plain")} if kind == "decoder" else {})) as live:
        for path, body in BODIES[kind].items():
            assert live.ask(path, body).status_code == live.ask("/health").status_code == 200, path
        for path, body in BODIES[kind].items():
            with torch.no_grad():
                weight.fill_(value)
            answer, health = live.ask(path, body), live.ask("/health")
            assert answer.status_code == 500, (path, answer.text)
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("not_a_number", "server_error")
            assert error["message"] == NOT_FINITE
            assert health.status_code == 503 and health.json()["error"]["message"] == NOT_FINITE
            assert live.ask("/health/live").status_code == 200
        with torch.no_grad():
            weight.copy_(original)
        assert live.ask(path, body).status_code == live.ask("/health").status_code == 200  # the last result
        live.idle()


def test_a_stream_ends_with_the_error() -> None:
    run = make("decoder")
    with torch.no_grad():
        next(run.model.parameters()).fill_(float("nan"))
    with living(run) as live:
        answer = live.ask("/v1/completions", {"prompt": "a dog", "stream": True})
        assert '"code":"not_a_number"' in answer.text and "[DONE]" not in answer.text
