"""Tests of serve/http/routes.py."""

from __future__ import annotations

from polyhead.serve.http.routes import ROUTES


def test_the_model_is_described(services):
    for kind, live in services.items():
        (about,) = live.ask("/v1/models").json()["data"]
        assert about["polyhead"]["kind"] == kind and about["polyhead"]["max_len"] == 48
        assert about["polyhead"]["labels"] == list(live.run.config.labels)
        for task in about["polyhead"]["tasks"]:
            assert f"/v1/{task}" in {route.path for route in ROUTES}


def test_the_description_names_every_route_and_every_field(services):
    told = services["decoder"].ask("/openapi.json").json()
    assert {(path, method.upper()) for path, methods in told["paths"].items() for method in methods} == {
        (r.path, r.method) for r in ROUTES
    }
    schemas = told["components"]["schemas"]
    for route in ROUTES:
        if route.body is not None:
            schema = schemas[route.body.__name__]
            assert set(schema["properties"]) == set(route.body.model_fields)
    fields = schemas["CompletionBody"]["properties"]
    plain = {name for name in fields if "default" in fields[name]}
    # what a client may send as it stands there; of all else the run has the default
    assert {"n", "stream", "echo"} <= plain
    assert not plain & {
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "logprobs",
        "beam_size",
        "min_tokens",
        "top_k",
    }
    given = {name: fields[name]["default"] for name in plain if fields[name]["default"] is not None}
    for live in (services["decoder"], services["encoder-decoder"]):
        assert live.ask("/v1/completions", {"prompt": "a", **given}).status_code == 200

    def references(tree):
        if isinstance(tree, dict):
            for key, value in tree.items():
                yield from [value] if key == "$ref" else references(value)
        elif isinstance(tree, list):
            for value in tree:
                yield from references(value)

    for reference in references(told):
        assert reference.removeprefix("#/components/schemas/") in schemas
