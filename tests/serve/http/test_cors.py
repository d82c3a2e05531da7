"""Tests of serve/http/app.py: pages of allowed origins may use the service; others get no CORS headers."""

import time

import pytest
from tests.serve.conftest import serve_run

from polyhead.core.errors import UserError
from polyhead.serve.auth import ApiKeys, check_origins
from polyhead.serve.limits import Limits

PATH, PAGE, KEY = "/v1/completions", "http://localhost:3000", "k" * 20
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
ORIGIN = "access-control-allow-origin"


def test_pages_of_allowed_origins_are_answered(runs):
    options = {"allowed_origins": [PAGE], "keys": ApiKeys([KEY]), "limits": Limits(header_timeout=0.3)}
    with serve_run(runs["decoder"], **options) as client:
        preflight = client.http.options(PATH, headers={"origin": PAGE, **PREFLIGHT})
        assert preflight.status_code == 200 and preflight.headers[ORIGIN] == PAGE
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "authorization"
        foreign = client.http.options(PATH, headers={"origin": "http://evil.test", **PREFLIGHT})
        assert foreign.status_code == 400 and ORIGIN not in foreign.headers
        time.sleep(0.5)  # a preflight leaves no deadline on its connection
        body, headers = {"prompt": "dogs", "max_tokens": 2, "odd": 1}, {"authorization": f"Bearer {KEY}"}
        for origin, allowed in ((PAGE, PAGE), ("http://evil.test", None)):
            answer = client.ask(PATH, body, headers={"origin": origin, **headers})
            assert answer.status_code == 200 and answer.headers.get(ORIGIN) == allowed
            assert "x-warnings" in answer.headers["access-control-expose-headers"]
        refusal = client.ask(PATH, body, headers={"origin": PAGE})
        assert refusal.status_code == 401 and refusal.headers[ORIGIN] == PAGE
        stream = client.ask(PATH, body | {"stream": True}, headers={"origin": PAGE, **headers})
        assert stream.headers[ORIGIN] == PAGE and "[DONE]" in stream.text


def test_no_page_is_allowed_by_default(client):
    answer = client.ask("/v1/models", headers={"origin": PAGE})
    assert answer.status_code == 200 and ORIGIN not in answer.headers
    assert client.http.options(PATH, headers={"origin": PAGE, **PREFLIGHT}).status_code == 405
    assert check_origins(["*", "https://a.test", "http://[::1]:80"])
    for origin in ("localhost:3000", "http://localhost:3000/", "http://A.test", "", "null"):
        with pytest.raises(UserError, match="is not an origin"):
            check_origins([origin])
