"""Tests of serve/http/metrics.py."""

from __future__ import annotations

import pytest


@pytest.mark.acceptance("F11")
def test_the_series_of_the_metrics_do_not_grow_with_what_clients_say(speaker):
    def series():
        return {
            line.rpartition(" ")[0]
            for line in speaker.ask("/metrics").text.splitlines()
            if not line.startswith("#")
        }

    speaker.ask("/v1/completions", {"prompt": "a", "model": "none"})
    speaker.ask("/v1/models/none")
    speaker.ask("/none")
    speaker.http.request("BREW", "/none")
    before = series() | series()
    for number in range(100):
        speaker.ask(
            "/v1/completions",
            {"prompt": "a", "model": f"model-{number}"},
            headers={"x-request-id": f"id-{number}"},
        )
        speaker.ask(f"/v1/models/model-{number}")
        speaker.ask(f"/path-{number}")
    speaker.http.request("BREWING", "/none")
    assert series() == before
