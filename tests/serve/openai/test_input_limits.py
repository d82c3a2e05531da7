from threading import Event

import pytest
from tests.serve.conftest import get_error, serve_run

from polyhead.serve.limits import Limits


@pytest.mark.acceptance("E3")
def test_long_texts_are_tokenised_outside_the_loop(runs, monkeypatch):
    with serve_run(runs["decoder"], limits=Limits(max_chars=50_000)) as client:
        tokenizer, is_entered, may_finish = client.service.engine.tokenizer, Event(), Event()
        encode = tokenizer.encode

        def encode_slowly(texts):
            is_entered.set()
            may_finish.wait()
            return encode(texts)

        monkeypatch.setattr(tokenizer, "encode", encode_slowly)
        with client.send({"prompt": "a" * 40_000, "truncate": True, "max_tokens": 1}) as sock:
            is_entered.wait()
            assert client.ask("/health").status_code == 200
            error = get_error(client.ask("/v1/completions", {"prompt": "a" * 50_001}))
            assert error["code"] == "text_too_long"
            may_finish.set()
            assert b"200 OK" in sock.recv(65536)
