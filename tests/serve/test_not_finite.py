"""A model whose outputs are NaN or infinite: status 500 on every route, and health reports it."""

import pytest
import torch
from tests.serve.conftest import build_run, get_error, serve_run

from polyhead import Choice
from polyhead.core.errors import NOT_FINITE

BODIES = {
    "decoder": [
        ("/v1/completions", {"prompt": "a dog", "max_tokens": 3}),
        ("/v1/completions", {"prompt": "a dog", "max_tokens": 0, "echo": True, "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "dogs"}], "max_tokens": 3}),
        ("/v1/score", {"input": ["a dog"]}),
        ("/v1/embeddings", {"input": "dogs"}),
    ],
    "encoder-decoder": [
        ("/v1/translations", {"input": "ein hund"}),
        ("/v1/completions", {"prompt": "ein hund"}),
        ("/v1/score", {"input": ["ein hund"], "target": ["a dog"]}),
    ],
    "encoder": [("/v1/embeddings", {"input": "dogs"}), ("/v1/fill-mask", {"input": "a <mask> barks ."})],
    "classifier": [("/v1/classify", {"input": ["dogs"]}), ("/v1/embeddings", {"input": "dogs"})],
}


@pytest.fixture(scope="module", params=BODIES)
def service(request):
    chat = Choice("plain") if request.param == "decoder" else None
    with serve_run(build_run(request.param), chat=chat) as client:
        yield request.param, client


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_every_route_and_health_report_non_finite_outputs(service, value):
    kind, client = service
    weight = next(client.run.model.parameters())
    original = weight.detach().clone()
    for path, body in BODIES[kind]:
        assert client.ask(path, body).status_code == client.ask("/health").status_code == 200, path
        with torch.no_grad():
            weight.fill_(value)
        error = get_error(client.ask(path, body), 500)
        assert (error["code"], error["type"]) == ("not_a_number", "server_error")
        assert error["message"] == NOT_FINITE
        assert get_error(client.ask("/health"), 503)["message"] == NOT_FINITE
        assert client.ask("/health/live").status_code == 200
        if path == "/v1/completions" and kind == "decoder":
            answer = client.ask(path, {"prompt": "a dog", "stream": True})
            assert '"code":"not_a_number"' in answer.text and "[DONE]" not in answer.text
        with torch.no_grad():
            weight.copy_(original)
    assert client.ask(path, body).status_code == client.ask("/health").status_code == 200  # the last result
    client.wait_idle()
