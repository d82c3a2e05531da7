import json

import pytest
from tests.serve.conftest import ENDLESS, serve_run

PATH = "/v1/completions"


@pytest.mark.acceptance("E5")
def test_failed_step_ends_its_requests_only(runs):
    with serve_run(runs["decoder"]) as client:
        engine = client.service.engine.engine
        schedule, calls = engine._schedule, []

        def fail_each_fourth():
            calls.append(1)
            if len(calls) % 4 == 0:
                raise MemoryError("out of memory")
            schedule()

        engine._schedule = fail_each_fourth
        assert client.ask(PATH, ENDLESS).status_code == 500
        stream = client.ask(PATH, ENDLESS | {"stream": True})
        assert stream.status_code == 200
        assert "[DONE]" not in stream.text
        events = [json.loads(line.removeprefix("data: ")) for line in stream.text.split("\n\n")[:-1]]
        assert events.pop()["error"]["code"] == "internal_error"
        del engine._schedule
        answer = client.ask(PATH, ENDLESS).json()
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text and answer["choices"][0]["text"].startswith(text), "text before the error is sent"
        client.wait_idle()
