import pytest

from polyhead.serve.metrics import Metrics


def read_series(text):
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_labeled_counters_begin_at_zero():
    series = read_series(Metrics().to_prometheus().decode())
    reasons = ("disconnect", "deadline", "shutdown")
    for name, label, values in (("aborted", "reason", reasons), ("tokens", "kind", ("prompt", "completion"))):
        assert not any(series[f'polyhead_{name}_total{{{label}="{value}"}}'] for value in values)


@pytest.mark.acceptance("F11")
def test_number_of_series_does_not_depend_on_clients(client):
    def list_series():
        return read_series(client.ask("/metrics").text).keys()

    def send_unknown(name):
        body, headers = {"prompt": "a", "model": name}, {"x-request-id": name}
        client.ask("/v1/completions", body, headers=headers)
        client.ask(f"/v1/models/{name}")
        client.ask(f"/{name}")
        client.http.request(name.upper(), "/none")

    send_unknown("none")
    expected = list_series() | list_series()
    for number in range(30):
        send_unknown(f"name-{number}")
    assert list_series() == expected
