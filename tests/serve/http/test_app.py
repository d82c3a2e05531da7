"""Tests of serve/http/app.py."""

from __future__ import annotations

import json

import pytest

from polyhead.serve.http.limits import Limits

BODY = {"prompt": "a dog barks .", "max_tokens": 30, "seed": 1, "stop": ["never said"]}


@pytest.mark.acceptance("E5")
def test_a_step_that_fails_ends_its_requests_and_not_the_service(runs, serving):
    with serving(runs["decoder"]) as live:
        inner = live.service.engine.engine
        admit, calls = inner._schedule, []

        def broken():
            calls.append(1)
            if len(calls) % 4 == 0:
                raise MemoryError("no room at all")
            admit()

        inner._schedule = broken
        assert live.ask("/v1/completions", BODY).status_code == 500
        events = live.ask("/v1/completions", BODY | {"stream": True})
        assert events.status_code == 200
        assert "[DONE]" not in events.text, "a stream that failed does not end as one that is whole"
        *said, failure = [json.loads(line.removeprefix("data: ")) for line in events.text.split("\n\n")[:-1]]
        assert failure["error"]["code"] == "internal_error"
        del inner._schedule
        whole = live.ask("/v1/completions", BODY)
        assert whole.status_code == 200
        text = "".join(event["choices"][0]["text"] for event in said)
        assert text and whole.json()["choices"][0]["text"].startswith(text), "what came before is not lost"
        live.idle()


def test_a_request_that_takes_too_long_ends_with_the_deadline(runs, serving, slowly):
    with serving(runs["decoder"], limits=Limits(timeout=0.2)) as live:
        with slowly(live) as engine:
            assert live.ask("/v1/completions", BODY).json()["error"]["code"] == "deadline"
            engine.let(2)
            live.idle()
        assert live.service.metrics.aborted_requests.labels("deadline")._value.get() == 1
