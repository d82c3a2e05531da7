"""Hostile bodies of requests by a seeded generator: each is answered, and none ends the service."""

import json
import random
import resource
from typing import Any

import pytest
from tests.cli.serve_helpers import endless_run as endless_run
from tests.cli.serve_helpers import serve_process
from tests.run.hostile_helpers import MEMORY, bad_bytes, dump, mutate

N_BODIES = 120
MESSAGES = [{"role": "user", "content": "two dogs bark ."}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "two dogs", "max_tokens": 3, "stop": ["x"], "logit_bias": {"5": 1}},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3, "seed": 1, "temperature": 0.5},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "float"},
}
SCHEMAS: list[dict[str, Any]] = [
    *(json.loads('{"type": "array", "items": ' * depth + "{}" + "}" * depth) for depth in (20, 900)),
    {"pattern": "(a+)+$", "type": "string"},
    {"$ref": "#"},
    {"minItems": 10**9, "type": "array"},
]


def hostile_body(draw, body):
    if draw.random() < 0.25:
        return bad_bytes(draw, json.dumps(body).encode())
    if draw.random() < 0.2:
        schema = {"name": "x", "schema": draw.choice(SCHEMAS)}
        return json.dumps(body | {"response_format": {"type": "json_schema", "json_schema": schema}}).encode()
    return dump(mutate(draw, body))


@pytest.mark.slow
def test_a_hundred_hostile_bodies_end_no_service(endless_run):
    draw, codes = random.Random(23), []
    with serve_process(endless_run) as service:
        resource.prlimit(service.process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        for number in range(N_BODIES):
            path = draw.choice(sorted(BODIES))
            content = hostile_body(draw, BODIES[path])
            answer = service.http.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400, 404, 413, 422), (number, answer.text, content[:300])
            if answer.status_code != 200:
                message = answer.json()["error"]["message"]
                assert message and "\n" not in message, (number, message)
            codes.append(answer.status_code)
        assert service.http.get("/health").status_code == 200
        assert service.http.post("/v1/completions", json=BODIES["/v1/completions"]).status_code == 200
        service.process.terminate()
        code, log = service.end()
    assert code == 0 and "Traceback" not in log and "panicked" not in log, log[-2000:]
    assert codes.count(400) > N_BODIES // 3
