"""Tests of serve/http/metrics.py."""

import pytest


@pytest.mark.acceptance("F11")
def test_number_of_series_does_not_depend_on_clients(client):
    def read_series():
        lines = client.ask("/metrics").text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    def send_unknown(name):
        body, headers = {"prompt": "a", "model": name}, {"x-request-id": name}
        client.ask("/v1/completions", body, headers=headers)
        client.ask(f"/v1/models/{name}")
        client.ask(f"/{name}")
        client.http.request(name.upper(), "/none")

    send_unknown("none")
    expected = read_series() | read_series()
    for number in range(30):
        send_unknown(f"name-{number}")
    assert read_series() == expected
