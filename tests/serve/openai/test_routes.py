from importlib.metadata import version

from polyhead.serve.openai.routes import ROUTES


def test_models_describe_the_model(clients):
    for kind, client in clients.items():
        (model,) = client.ask("/v1/models").json()["data"]
        assert client.ask("/v1/models/tiny").json() == model
        assert model["polyhead"]["kind"] == kind and model["polyhead"]["max_len"] == 48
        assert model["polyhead"]["labels"] == list(client.run.config.labels)
        assert {f"/v1/{task}" for task in model["polyhead"]["tasks"]} <= {route.path for route in ROUTES}


def list_references(tree):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from [value] if key == "$ref" else list_references(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from list_references(value)


def test_openapi_describes_every_route_and_field(client):
    description = client.ask("/openapi.json").json()
    routes = {(path, name.upper()) for path, methods in description["paths"].items() for name in methods}
    assert routes == {(route.path, route.method) for route in ROUTES}
    schemas = description["components"]["schemas"]
    for route in ROUTES:
        if route.body is not None:
            assert set(schemas[route.body.__name__]["properties"]) == set(route.body.model_fields)
    for reference in list_references(description):
        assert reference.removeprefix("#/components/schemas/") in schemas


def test_openapi_defaults_can_be_sent(client, translator):
    """Fields without a default have that of the run."""
    fields = client.ask("/openapi.json").json()["components"]["schemas"]["CompletionBody"]["properties"]
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    assert {"n", "stream", "echo"} <= defaults.keys()
    run_defaults = {"max_tokens", "temperature", "top_p", "logprobs"}
    assert not defaults.keys() & (run_defaults | {"beam_size", "min_tokens", "top_k"})
    body = {name: value for name, value in defaults.items() if value is not None}
    for service in (client, translator):
        assert service.ask("/v1/completions", {"prompt": "a", **body}).status_code == 200


def test_routers_get_name_files_and_context_length(clients, tmp_path, monkeypatch):
    for kind, client in clients.items():
        model, server = (client.ask(path).json() for path in ("/model_info", "/server_info"))
        assert model == {
            "model_path": "tiny",  # of a run without a directory
            "tokenizer_path": "tiny",
            "model_type": "polyhead",
            "is_generation": kind in ("decoder", "encoder-decoder"),
            "context_length": 48,
        }
        batch_size = 64 if model["is_generation"] else client.service.limits.max_batch
        sizes = {"tp_size": 1, "dp_size": 1, "max_running_requests": batch_size}
        assert server == model | sizes | {"served_model_name": "tiny", "version": version("polyhead")}
    client = clients["decoder"]
    monkeypatch.setattr(client.run, "directory", tmp_path)
    monkeypatch.setattr(client.run, "family", "llama")
    for path in ("/model_info", "/server_info"):
        model = client.ask(path).json()
        assert model["model_path"] == model["tokenizer_path"] == str(tmp_path)
        assert model["model_type"] == "llama"
