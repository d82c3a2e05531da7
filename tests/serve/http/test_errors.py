"""Tests of serve/http/errors.py."""

from __future__ import annotations

from tests.serve.refusals_helpers import post, refused


def test_other_paths_methods_and_media_have_the_same_envelope(speaker):
    for path in ("/v1", "/v1/complete", "/admin", "/v1/completions/", "/docs"):
        assert refused(speaker.ask(path), 404)["code"] == "not_found"
    answer = speaker.ask("/v1/completions")
    assert refused(answer, 405) and answer.headers["allow"] == "POST"
    assert refused(speaker.http.delete("/v1/models"), 405)
    assert refused(speaker.http.post("/v1/completions", content=b"prompt=a"), 415)
    assert refused(speaker.http.post("/v1/completions", data={"prompt": "a"}), 415)
    assert refused(post(speaker, b"\x1f\x8b" + b"\0" * 999, **{"content-encoding": "gzip"}), 415)
    assert speaker.http.head("/v1/models").status_code == 200 and speaker.http.head("/v1/models").text == ""
