"""The table of all routes; router and /openapi.json are generated from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, NamedTuple

from polyhead.evaluate.embed import token_limit
from polyhead.introspect.attention_maps import has_cross_attention
from polyhead.kernels.pack_model import packed_dtype
from polyhead.serve.http.errors import ApiError
from polyhead.serve.http.http_exchange import HttpExchange
from polyhead.serve.http.page import choose_page_language, content_security_policy, render_page
from polyhead.serve.model_card import reads_pairs
from polyhead.serve.openai import chat_completions, completions, pooling_endpoints, responses
from polyhead.serve.openai.schema_fields import DEFAULT_FROM_RUN
from polyhead.serve.openai.schemas import (
    ChatBody,
    ClassifyBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    FillBody,
    RequestBody,
    ResponseBody,
    ScoreBody,
    TokenizeBody,
    TranslationBody,
)
from polyhead.serve.service import Service
from polyhead.tokenizers.languages import default_languages, list_languages

PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Route(NamedTuple):
    """Method, path and handler of one endpoint."""

    method: str
    path: str
    handler: Callable[..., Awaitable[None]]  # (service, exchange), and the body if the route has one
    summary: str
    body: type[RequestBody] | None = None
    is_public: bool = False  # no key required

    @property
    def is_queued(self) -> bool:
        """Whether the endpoint uses the queue of the engine; tokenize and detokenize run at once."""
        return self.body is not None and self.path.startswith("/v1/")


async def list_models(service: Service, exchange: HttpExchange) -> None:
    """List the models: the one that is served."""
    await exchange.send_json({"object": "list", "data": [describe_model(service)]})


async def retrieve_model(service: Service, exchange: HttpExchange) -> None:
    """Return the model by its id."""
    service.check_model(exchange.path.removeprefix("/v1/models/"))
    await exchange.send_json(describe_model(service))


def describe_model(service: Service) -> dict[str, Any]:
    """Return the description of the served model."""
    run, config, limits = service.run, service.run.config, service.limits
    info: dict[str, Any] = {
        "kind": service.kind, "tasks": service.tasks, "max_len": config.max_len, "vocab_size": run.tokenizer.vocab_size,
        "dtype": packed_dtype(run.model), "labels": list(config.labels), "text_limit": service.card.limit._asdict(),
        "examples": service.card.examples, "pairs": reads_pairs(run),
        "limits": {"texts": limits.batch, "n": limits.n, "beams": limits.beams, "max_tokens": limits.max_tokens},
    }  # fmt: skip
    if run.recipe is not None:
        info["learned"] = run.recipe.task.name
    if run.recipe is not None and run.recipe.data.source_lang:
        info |= {"source": run.recipe.data.source_lang, "target": run.recipe.data.target_lang}
    if "embeddings" in service.tasks:
        info |= {"max_text_len": token_limit(run.generation, config.max_len)}
        info |= {"prompts": run.generation.prompts, "prompt": run.generation.prompt}
    if service.kind in ("decoder", "encoder-decoder"):
        sampling = ("temperature", "top_p", "top_k", "max_new_tokens")
        penalties = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        fields = (*sampling, *penalties, "beam_size", "length_penalty")
        info["generation"] = {name: getattr(run.generation, name) for name in fields}
    if service.kind == "encoder-decoder":
        info |= {"attention": len(run.members) == 1 and has_cross_attention(run.model)}
        info |= {"languages": list_languages(run.tokenizer), "settled": default_languages(run.tokenizer)}
    return {
        "id": service.name,
        "object": "model",
        "created": service.created_at,
        "owned_by": "polyhead",
        "polyhead": info,
    }


async def healthz(service: Service, exchange: HttpExchange) -> None:
    """Liveness check."""
    await exchange.send_json({"status": "live"})


async def readyz(service: Service, exchange: HttpExchange) -> None:
    """Readiness check; the error contains the reason."""
    trouble = service.health_error
    if trouble:
        raise ApiError(503, "not_ready", trouble, headers={"retry-after": "5"})
    await exchange.send_json({"status": "ready"})


async def get_metrics(service: Service, exchange: HttpExchange) -> None:
    """Return the Prometheus metrics."""
    await exchange.send(service.render_metrics(), PROMETHEUS_CONTENT_TYPE)


async def get_openapi(service: Service, exchange: HttpExchange) -> None:
    """Return the OpenAPI description."""
    await exchange.send_json(build_openapi())


async def index(service: Service, exchange: HttpExchange) -> None:
    """Return the web page."""
    language = choose_page_language(exchange.headers.get("accept-language", ""))
    headers = {
        "content-security-policy": content_security_policy(), "content-language": language, "vary": "accept-language",
    }  # fmt: skip
    await exchange.send(render_page(language), "text/html; charset=utf-8", headers=headers)


ROUTES = [
    Route("GET", "/", index, "a page to try the model on", is_public=True),
    Route("GET", "/v1/models", list_models, "the model that is served"),
    Route("GET", "/v1/models/{id}", retrieve_model, "the same, by its id"),
    Route("POST", "/v1/completions", completions.create_completions, "go on from a text", CompletionBody),
    Route("POST", "/v1/translations", completions.create_translations, "translate", TranslationBody),
    Route(
        "POST",
        "/v1/chat/completions",
        chat_completions.create_chat_completion,
        "answer in a conversation",
        ChatBody,
    ),
    Route("POST", "/v1/responses", responses.create_response, "the same, in items", ResponseBody),
    Route(
        "POST", "/v1/embeddings", pooling_endpoints.create_embeddings, "a vector for each text", EmbeddingBody
    ),
    Route(
        "POST",
        "/v1/classify",
        pooling_endpoints.create_classifications,
        "the class of each text",
        ClassifyBody,
    ),
    Route(
        "POST",
        "/v1/fill-mask",
        pooling_endpoints.create_mask_predictions,
        "what stands behind a mask",
        FillBody,
    ),
    Route("POST", "/v1/score", pooling_endpoints.create_scores, "how likely a text is", ScoreBody),
    Route("POST", "/tokenize", pooling_endpoints.tokenize, "text to tokens", TokenizeBody),
    Route("POST", "/detokenize", pooling_endpoints.detokenize, "tokens to text", DetokenizeBody),
    Route("GET", "/health/live", healthz, "whether the process answers", is_public=True),
    Route("GET", "/health/ready", readyz, "whether requests may be sent"),
    Route("GET", "/health", readyz, "the same"),
    Route("GET", "/metrics", get_metrics, "measures for Prometheus"),
    Route("GET", "/openapi.json", get_openapi, "this description"),
]
MODELS_PATH = "/v1/models/"


def find_route(method: str, path: str) -> Route:
    """Return the route of a request, or raise an ApiError: 404, or 405 with the allowed methods."""
    pattern = MODELS_PATH + "{id}" if path.startswith(MODELS_PATH) and len(path) > len(MODELS_PATH) else path
    routes = [route for route in ROUTES if route.path == pattern]
    if not routes:
        raise ApiError(404, "not_found", "there is no such path; GET /openapi.json lists all")
    for route in routes:
        if route.method == method or (method == "HEAD" and route.method == "GET"):
            return route
    allowed = ", ".join(route.method for route in routes)
    raise ApiError(405, "method_not_allowed", f"wanted: {allowed}", headers={"allow": allowed})


def build_openapi() -> dict[str, Any]:
    """Build the OpenAPI description of all routes."""
    schemas: dict[str, Any] = {"Error": ERROR_SCHEMA}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {"summary": route.summary, "responses": _describe_responses(route)}
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            for field in schema["properties"].values():
                if field.pop(DEFAULT_FROM_RUN, False):
                    del field["default"]
            schemas[route.body.__name__] = schema
            content = {
                "application/json": {"schema": {"$ref": f"#/components/schemas/{route.body.__name__}"}}
            }
            operation["requestBody"] = {"required": True, "content": content}
        if "{id}" in route.path:
            operation["parameters"] = [
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        if route.is_public:
            operation["security"] = []
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Polyhead", "version": version("polyhead")},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": "string"},
            },
        }
    },
}  # fmt: skip
CONTENT_TYPES = {"/": "text/html", "/metrics": "text/plain"}
ERROR_DESCRIPTIONS = {
    "400": "a field is wrong, or the model cannot do this", "401": "no valid key", "404": "no such model or path", "408": "the body was too slow",
    "413": "the body is too large", "415": "not plain JSON", "429": "too many texts wait", "500": "a defect of the service",
    "503": "not ready, or shutting down", "504": "the deadline has passed",
}  # fmt: skip


def _describe_responses(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {
        CONTENT_TYPES.get(route.path, "application/json"): {
            "schema": {} if route.path in CONTENT_TYPES else {"type": "object"}
        }
    }
    if route.body is not None and "stream" in route.body.model_fields:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": route.summary, "content": content}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    possible = (
        ERROR_DESCRIPTIONS
        if route.body
        else {code: ERROR_DESCRIPTIONS[code] for code in ("400", "401", "404", "500", "503")}
    )
    return responses | {
        code: {"description": description, "content": error} for code, description in possible.items()
    }
