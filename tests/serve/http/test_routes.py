"""Tests of serve/http/routes.py."""

from __future__ import annotations

from importlib.metadata import version

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


def test_routers_get_the_name_the_files_and_the_length_of_the_model(services, tmp_path, monkeypatch):
    for kind, live in services.items():
        model, server = (live.ask(path).json() for path in ("/model_info", "/server_info"))
        assert model == {
            "model_path": "tiny",  # made here, without a directory
            "tokenizer_path": "tiny",
            "model_type": "polyhead",
            "is_generation": kind in ("decoder", "encoder-decoder"),
            "context_length": 48,
        }
        batch = 64 if model["is_generation"] else live.service.limits.max_batch
        sizes = {"tp_size": 1, "dp_size": 1, "max_running_requests": batch}
        assert server == model | sizes | {"served_model_name": "tiny", "version": version("polyhead")}
    live = services["decoder"]
    monkeypatch.setattr(live.run, "directory", tmp_path)
    monkeypatch.setattr(live.run, "family", "llama")
    for path in ("/model_info", "/server_info"):
        about = live.ask(path).json()
        assert about["model_path"] == about["tokenizer_path"] == str(tmp_path)
        assert about["model_type"] == "llama"
