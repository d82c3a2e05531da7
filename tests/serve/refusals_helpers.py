"""Shared by the tests of refusals."""

from __future__ import annotations

import pytest

CANARY = {"prompt": "a dog barks .", "seed": 7, "max_tokens": 12}


@pytest.fixture
def canary(speaker):
    """Afterwards the same request still has the same answer."""
    (wanted,) = speaker.run.generate([CANARY["prompt"]], seed=7, max_new_tokens=12)
    yield
    answer = speaker.ask("/v1/completions", CANARY)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == wanted
    speaker.idle()


def refused(answer, code=400):
    assert answer.status_code == code, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in answer.text
    return error


def post(live, content, **headers):
    return live.http.post(
        "/v1/completions", content=content, headers={"content-type": "application/json", **headers}
    )
