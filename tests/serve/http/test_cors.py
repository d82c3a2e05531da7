"""Web pages of allowed origins may use the service from a browser; others get no CORS headers."""

from __future__ import annotations

import time

import pytest
from tests.serve.conftest import living, make

from polyhead.core.errors import UserError
from polyhead.serve.http.auth import ApiKeys
from polyhead.serve.http.cors import check_origins
from polyhead.serve.http.limits import Limits

PAGE, KEY = "http://localhost:3000", "k" * 20
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


def test_pages_of_allowed_origins_are_answered():
    run = make("decoder")
    with living(run, allowed_origins=[PAGE], keys=ApiKeys([KEY]), limits=Limits(header_timeout=0.5)) as live:
        asked = live.http.options("/v1/completions", headers={"origin": PAGE, **PREFLIGHT})
        assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == PAGE
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization"
        other = live.http.options("/v1/completions", headers={"origin": "http://evil.test", **PREFLIGHT})
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
        time.sleep(0.8)  # a preflight leaves no deadline behind on its connection
        body, head = {"prompt": "dogs", "max_tokens": 2, "odd": 1}, {"authorization": f"Bearer {KEY}"}
        for origin, allowed in ((PAGE, PAGE), ("http://evil.test", None)):
            answer = live.ask("/v1/completions", body, headers={"origin": origin, **head})
            assert answer.status_code == 200
            assert answer.headers.get("access-control-allow-origin") == allowed
            assert "x-warnings" in answer.headers["access-control-expose-headers"]
        refused = live.ask("/v1/completions", body, headers={"origin": PAGE})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == PAGE
        stream = live.ask("/v1/completions", body | {"stream": True}, headers={"origin": PAGE, **head})
        assert stream.headers["access-control-allow-origin"] == PAGE and "[DONE]" in stream.text


def test_without_the_option_no_page_is_allowed(services):
    live = services["decoder"]
    answer = live.ask("/v1/models", headers={"origin": PAGE})
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
    assert live.http.options("/v1/completions", headers={"origin": PAGE, **PREFLIGHT}).status_code == 405


@pytest.mark.parametrize("origin", ["localhost:3000", "http://localhost:3000/", "http://A.test", "", "null"])
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(UserError, match="is not an origin"):
        check_origins([origin])
    assert check_origins(["*", "https://a.test", "http://[::1]:80"])
