import json

import pytest
from tests.serve.conftest import build_run, get_error, read_all, serve_run

from polyhead.core.errors import UserError
from polyhead.run.run_ensemble import ensemble_runs

NAMES = ["../tiny", "..%2f..%2fetc%2fpasswd", "%2e%2e/tiny", "/etc/passwd", "tiny%00", "\\\\host\\share"]
NAMES += ["tiny/../tiny", "tiny ", "x" * 5000, "gpt-4", "Tiny", "tiny2"]


@pytest.mark.acceptance("F6")
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_model_names_are_compared_only(client, name):
    with client.connect() as sock:  # a library of HTTP would normalise the path
        path = f"/v1/models/{name.replace(' ', '%20')}"
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        sock.sendall(head.encode())
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert b" 404 " in head and json.loads(body)["error"]["code"] == "model_not_found"
    error = get_error(client.ask("/v1/completions", {"prompt": "a", "model": name}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert client.ask("/v1/models/tiny").json()["id"] == "tiny"


def test_service_without_any_task_does_not_start():
    run = ensemble_runs([build_run("encoder", lm_head=False) for _ in range(2)])
    message = "embeddings require a single run, not an ensemble of 2"
    with pytest.raises(UserError, match=message), serve_run(run):
        pass
