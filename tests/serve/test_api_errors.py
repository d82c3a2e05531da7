from tests.serve.conftest import get_error


def test_unknown_paths_methods_and_media_are_refused(client):
    for path in ("/v1", "/v1/complete", "/admin", "/v1/completions/", "/docs"):
        assert get_error(client.ask(path), 404)["code"] == "not_found"
    answer = client.ask("/v1/completions")
    assert get_error(answer, 405) and answer.headers["allow"] == "POST"
    assert get_error(client.http.delete("/v1/models"), 405)
    assert get_error(client.http.post("/v1/completions", content=b"prompt=a"), 415)
    assert get_error(client.http.post("/v1/completions", data={"prompt": "a"}), 415)
    assert get_error(client.post(b"\x1f\x8b" + b"\0" * 999, **{"content-encoding": "gzip"}), 415)
    head = client.http.head("/v1/models")
    assert (head.status_code, head.text) == (200, "")
