"""Tests of serve/http/auth.py."""

from __future__ import annotations

import json

import pytest
from tests.serve.refusals_helpers import refused

from polyhead.serve.http.auth import ApiKeys, check_host, read_keys
from polyhead.serve.http.routes import ROUTES


@pytest.mark.acceptance("F7", "F8")
def test_every_route_wants_a_key_but_the_pulse_and_the_page(runs, serving):
    key, other = "k" * 24, "another-key-of-the-service"
    with serving(runs["decoder"], keys=ApiKeys([key, other])) as live:
        for route in ROUTES:
            path = route.path.replace("{id}", "tiny")
            for headers in (
                {},
                {"authorization": "Bearer wrong-key-wrong-key"},
                {"authorization": f"Basic {key}"},
                {"authorization": f"Bearer {key}x"},
                {"authorization": "Bearer"},
            ):
                answer = live.http.request(
                    route.method, path, headers=headers, json={"prompt": "a"} if route.body else None
                )
                if path in ("/", "/health", "/health/live"):
                    assert answer.status_code == 200 and "tiny" not in answer.text
                elif path == "/explain":  # the page has no data of the model
                    assert (
                        answer.status_code == 200 and 'explain-data"' not in answer.text.split("<script>")[0]
                    )
                else:
                    assert refused(answer, 401)["code"] == "invalid_api_key"
        for known in (key, other):
            assert live.ask("/v1/models", headers={"authorization": f"Bearer {known}"}).status_code == 200
        assert key not in json.dumps({k: repr(v) for k, v in vars(live.service.api_keys).items()})


@pytest.mark.acceptance("F7")
def test_who_can_be_reached_by_others_must_have_a_key(tmp_path):
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_host(host, ApiKeys())
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ValueError, match="is reachable from other machines"):
            check_host(host, ApiKeys())
        check_host(host, ApiKeys(["k" * 24]))
    file = tmp_path / "keys.txt"
    file.write_text("# of the first team\n" + "a" * 20 + "\n\n")
    environment = {"POLYHEAD_API_KEY": "b" * 20, "PATH": "x"}
    keys = read_keys(file, environment)
    assert environment == {"PATH": "x"}, "no child inherits it"
    for key in ("a" * 20, "b" * 20):
        keys.check({"authorization": f"Bearer {key}"})
    for content, said in (
        ("", "has no keys"),
        ("short\n", "too short"),
        ("with blanks in the key\n", "invalid characters"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=said):
            read_keys(file, {})


@pytest.mark.acceptance("F8")
def test_keys_are_compared_in_constant_time():
    import ast
    import inspect

    from polyhead.serve.http import auth

    tree = ast.parse(inspect.getsource(auth.ApiKeys))
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.In) for op in node.ops)
    ]
    assert "hmac.compare_digest" in ast.unparse(tree)


def test_without_keys_a_page_of_the_web_cannot_ask_through_a_name_of_its_own(speaker):
    assert refused(speaker.ask("/v1/models", headers={"host": "evil.example"}), 403)["code"] == "wrong_host"
    assert speaker.ask("/v1/models", headers={"host": "LocalHost.:8000"}).status_code == 200
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000"):
        assert speaker.ask("/v1/models", headers={"host": host}).status_code == 200
