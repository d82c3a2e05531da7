"""Every route of the service in one table, of which both the router and /openapi.json are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, NamedTuple

from polyhead.analysis.attention_maps import has_cross_attention
from polyhead.analysis.vectors import reach
from polyhead.fast.pack import dtype_of
from polyhead.serve import analyses, chat_completions, completions, responses
from polyhead.serve.bodies import (
    Body,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    FillBody,
    ResponseBody,
    ScoreBody,
    TokenizeBody,
    TranslationBody,
)
from polyhead.serve.call import Call
from polyhead.serve.card import reads_pairs
from polyhead.serve.fields import OF_RUN
from polyhead.serve.page import page, page_language, policy
from polyhead.serve.refusal import Refusal
from polyhead.serve.service import Service
from polyhead.text.sides import languages, settled_languages

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Route(NamedTuple):
    """What is done at a path."""

    method: str
    path: str
    does: Callable[..., Awaitable[None]]  # (service, call), and the body where there is one
    about: str
    body: type[Body] | None = None
    open: bool = False  # to those without a key

    @property
    def waits(self) -> bool:
        """Whether it takes a place in the queue; tokens and texts are turned into each other at once."""
        return self.body is not None and self.path.startswith("/v1/")


async def models(service: Service, call: Call) -> None:
    """All models: the one."""
    await call.reply({"object": "list", "data": [described(service)]})


async def model(service: Service, call: Call) -> None:
    """The model, by its id."""
    service.named(call.path.removeprefix("/v1/models/"))
    await call.reply(described(service))


def described(service: Service) -> dict[str, Any]:
    """What is served."""
    run, own, limits = service.run, service.run.config, service.limits
    about: dict[str, Any] = {
        "kind": service.kind, "tasks": service.tasks, "max_len": own.max_len, "vocab_size": run.tokenizer.vocab_size,
        "dtype": dtype_of(run.model), "labels": list(own.labels), "text_limit": service.card.limit._asdict(),
        "examples": service.card.examples, "pairs": reads_pairs(run),
        "limits": {"texts": limits.batch, "n": limits.n, "beams": limits.beams, "max_tokens": limits.max_tokens},
    }  # fmt: skip
    if run.recipe is not None:
        about["learned"] = run.recipe.task.name
    if run.recipe is not None and run.recipe.data.source_lang:
        about |= {"source": run.recipe.data.source_lang, "target": run.recipe.data.target_lang}
    if "embeddings" in service.tasks:
        about |= {"max_text_len": reach(run.generation, own.max_len)}
        about |= {"prompts": run.generation.prompts, "prompt": run.generation.prompt}
    if service.kind in ("decoder", "encoder-decoder"):
        drawn = ("temperature", "top_p", "top_k", "max_new_tokens")
        against = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        shown = (*drawn, *against, "beam_size", "length_penalty")
        about["generation"] = {name: getattr(run.generation, name) for name in shown}
    if service.kind == "encoder-decoder":
        about |= {"attention": len(run.members) == 1 and has_cross_attention(run.model)}
        about |= {"languages": languages(run.tokenizer), "settled": settled_languages(run.tokenizer)}
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "polyhead",
        "polyhead": about,
    }


async def live(service: Service, call: Call) -> None:
    """The process answers."""
    await call.reply({"status": "live"})


async def ready(service: Service, call: Call) -> None:
    """Whether requests may be sent, else why not."""
    trouble = service.trouble
    if trouble:
        raise Refusal(503, "not_ready", trouble, headers={"retry-after": "5"})
    await call.reply({"status": "ready"})


async def metrics(service: Service, call: Call) -> None:
    """Measures for Prometheus."""
    await call.send(service.measures(), PROMETHEUS)


async def openapi(service: Service, call: Call) -> None:
    """The description of the routes."""
    await call.reply(described_routes())


async def front(service: Service, call: Call) -> None:
    """The page."""
    language = page_language(call.headers.get("accept-language", ""))
    headers = {
        "content-security-policy": policy(), "content-language": language, "vary": "accept-language",
    }  # fmt: skip
    await call.send(page(language), "text/html; charset=utf-8", headers=headers)


ROUTES = [
    Route("GET", "/", front, "a page to try the model on", open=True),
    Route("GET", "/v1/models", models, "the model that is served"),
    Route("GET", "/v1/models/{id}", model, "the same, by its id"),
    Route("POST", "/v1/completions", completions.completions, "go on from a text", CompletionBody),
    Route("POST", "/v1/translations", completions.translations, "translate", TranslationBody),
    Route("POST", "/v1/chat/completions", chat_completions.chat, "answer in a conversation", ChatBody),
    Route("POST", "/v1/responses", responses.respond, "the same, in items", ResponseBody),
    Route("POST", "/v1/embeddings", analyses.embeddings, "a vector for each text", EmbeddingBody),
    Route("POST", "/v1/classify", analyses.classify, "the class of each text", ClassifyBody),
    Route("POST", "/v1/fill-mask", analyses.fill_mask, "what stands behind a mask", FillBody),
    Route("POST", "/v1/score", analyses.score, "how likely a text is", ScoreBody),
    Route("POST", "/tokenize", analyses.tokenize, "text to tokens", TokenizeBody),
    Route("POST", "/detokenize", analyses.detokenize, "tokens to text", DetokenizeBody),
    Route("GET", "/health/live", live, "whether the process answers", open=True),
    Route("GET", "/health/ready", ready, "whether requests may be sent"),
    Route("GET", "/health", ready, "the same"),
    Route("GET", "/metrics", metrics, "measures for Prometheus"),
    Route("GET", "/openapi.json", openapi, "this description"),
]
MODELS = "/v1/models/"


def find(method: str, path: str) -> Route:
    """The route of a request; a Refusal says that there is none, or by which method there is."""
    pattern = MODELS + "{id}" if path.startswith(MODELS) and len(path) > len(MODELS) else path
    there = [route for route in ROUTES if route.path == pattern]
    if not there:
        raise Refusal(404, "not_found", "there is no such path; GET /openapi.json lists all")
    for route in there:
        if route.method == method or (method == "HEAD" and route.method == "GET"):
            return route
    allowed = ", ".join(route.method for route in there)
    raise Refusal(405, "method_not_allowed", f"wanted: {allowed}", headers={"allow": allowed})


def described_routes() -> dict[str, Any]:
    """The OpenAPI description of all routes."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {"summary": route.about, "responses": _responses(route)}
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            for field in schema["properties"].values():
                if field.pop(OF_RUN, False):
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
        if route.open:
            operation["security"] = []
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Polyhead", "version": version("polyhead")},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


ERROR = {
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
KINDS = {"/": "text/html", "/metrics": "text/plain"}
REFUSED = {
    "400": "a field is wrong, or the model cannot do this", "401": "no valid key", "404": "no such model or path", "408": "the body was too slow",
    "413": "the body is too large", "415": "not plain JSON", "429": "too many texts wait", "500": "a defect of the service",
    "503": "not ready, or shutting down", "504": "the deadline has passed",
}  # fmt: skip


def _responses(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {
        KINDS.get(route.path, "application/json"): {
            "schema": {} if route.path in KINDS else {"type": "object"}
        }
    }
    if route.body is not None and "stream" in route.body.model_fields:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answers: dict[str, Any] = {"200": {"description": route.about, "content": content}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    possible = (
        REFUSED if route.body else {code: REFUSED[code] for code in ("400", "401", "404", "500", "503")}
    )
    return answers | {code: {"description": about, "content": error} for code, about in possible.items()}
