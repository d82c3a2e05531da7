import ast
import inspect
import json
import os

import pytest
from tests.serve.conftest import get_error, serve_run

from polyhead.serve import auth
from polyhead.serve.auth import ApiKeys, check_host, read_keys
from polyhead.serve.openai.routes import ROUTES


@pytest.mark.acceptance("F7", "F8")
def test_routes_but_page_and_liveness_require_a_key(runs):
    key, other_key = "k" * 24, "another-key-of-the-service"
    invalid = ["Bearer wrong-key-wrong-key", f"Basic {key}", f"Bearer {key}x", "Bearer"]
    with serve_run(runs["decoder"], keys=ApiKeys([key, other_key])) as client:
        for route in ROUTES:
            path, body = route.path.replace("{id}", "tiny"), {"prompt": "a"} if route.body else None
            for headers in ({}, *({"authorization": value} for value in invalid)):
                answer = client.http.request(route.method, path, headers=headers, json=body)
                if path in ("/", "/health", "/health/live"):
                    assert answer.status_code == 200 and "tiny" not in answer.text
                elif path == "/explain":  # the page has no data of the model
                    assert answer.status_code == 200
                    assert 'explain-data"' not in answer.text.split("<script>")[0]
                else:
                    assert get_error(answer, 401)["code"] == "invalid_api_key"
        for valid in (key, other_key):
            headers = {"authorization": f"Bearer {valid}"}
            assert client.ask("/v1/models", headers=headers).status_code == 200
        assert key not in json.dumps({k: repr(v) for k, v in vars(client.service.api_keys).items()})


@pytest.mark.acceptance("F7")
def test_public_host_requires_keys(client):
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_host(host, ApiKeys())
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        check_host(host, ApiKeys(["k" * 24]))
        with pytest.raises(ValueError, match="is reachable from other machines"):
            check_host(host, ApiKeys())
    for route in ROUTES:
        path, body = route.path.replace("{id}", "tiny"), {"prompt": "a"} if route.body else None
        answer = client.http.request(route.method, path, headers={"host": "evil.example"}, json=body)
        assert get_error(answer, 403)["code"] == "wrong_host"
    for host in ("localhost", "LocalHost.:8000", "localhost:8000", "127.0.0.1:1", "[::1]:8000"):
        assert client.ask("/v1/models", headers={"host": host}).status_code == 200


def test_keys_are_read_from_file_and_environment(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text("# of the first team\n" + "a" * 20 + "\n\n")
    environment = {"POLYHEAD_API_KEY": "b" * 20, "PATH": "x"}
    keys = read_keys(path, environment)
    assert environment == {"PATH": "x"}, "no child inherits it"
    for key in ("a" * 20, "b" * 20):
        keys.check({"authorization": f"Bearer {key}"})
    contents = {"": "has no keys", "a" * 15: "too short", "with blanks in the key": "invalid characters"}
    for content, message in contents.items():
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_keys(path, {})
    os.mkfifo(path.with_name("fifo"))
    with pytest.raises(ValueError, match="fifo is not a regular file"):
        read_keys(path.with_name("fifo"), {})
    path.write_text("a" * 16)
    read_keys(path, {}).check({"authorization": f"Bearer {'a' * 16}"})


@pytest.mark.acceptance("F8")
def test_keys_are_compared_in_constant_time():
    tree = ast.parse(inspect.getsource(auth.ApiKeys))
    comparisons = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert not [op for node in comparisons for op in node.ops if isinstance(op, ast.Eq | ast.In)]
    assert "hmac.compare_digest" in ast.unparse(tree)
