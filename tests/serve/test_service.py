"""Tests of serve/service.py."""

from __future__ import annotations

import json

import pytest
from tests.serve.conftest import make
from tests.serve.refusals_helpers import refused

from polyhead.core.errors import UserError
from polyhead.run.run_ensemble import ensemble_runs


@pytest.mark.acceptance("F6")
@pytest.mark.parametrize(
    "name",
    [
        "../tiny",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/tiny",
        "/etc/passwd",
        "tiny%00",
        "\\\\host\\share",
        "tiny/../tiny",
        "tiny ",
        "x" * 5000,
    ],
)
def test_names_of_models_are_looked_up_and_nothing_else(speaker, name):
    with speaker.raw() as sock:  # a client's library would tidy the path
        sock.sendall(
            f"GET /v1/models/{name.replace(' ', '%20')} HTTP/1.1\r\nHost: localhost\r\nConnection: "
            "close\r\n\r\n".encode()
        )
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b" 404 " in head and json.loads(body)["error"]["code"] == "model_not_found"
    assert refused(speaker.ask("/v1/completions", {"prompt": "a", "model": name}), 404)["param"] == "model"
    assert speaker.ask("/v1/models/tiny").json()["id"] == "tiny"


def test_a_service_that_could_do_nothing_does_not_start(serving):
    runs = [make("encoder", lm_head=False) for _ in range(2)]
    with (
        pytest.raises(UserError, match="embeddings require a single run, not an ensemble of 2"),
        serving(ensemble_runs(runs)),
    ):
        pass
