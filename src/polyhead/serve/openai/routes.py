"""The table of all routes, from which the router and /openapi.json are made."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from starlette.responses import HTMLResponse, Response

from polyhead.core.i18n import UI_LANGUAGES
from polyhead.evaluate.embed import token_limit
from polyhead.explain.chapters import load_chapters
from polyhead.explain.walk_page import render_walk_page, walk_page_policy
from polyhead.introspect.compute_attention import has_cross_attention
from polyhead.kernels.pack_model import packed_dtype
from polyhead.run.run_directory import MODEL_TYPE
from polyhead.serve.api_errors import not_found_error, unavailable_error
from polyhead.serve.http.app import ApiRoute, App
from polyhead.serve.http.http_exchange import HttpExchange, dump_json
from polyhead.serve.http.page import choose_page_language, content_security_policy, render_page
from polyhead.serve.model_card import reads_pairs
from polyhead.serve.openai.chat_completions import create_chat_completion
from polyhead.serve.openai.completions import create_completions, create_translations
from polyhead.serve.openai.pooling_endpoints import (
    create_answer,
    create_classifications,
    create_embeddings,
    create_explanation,
    create_mask_predictions,
    create_reranking,
    create_scores,
    create_tags,
    detokenize,
    tokenize,
)
from polyhead.serve.openai.request_validation import validate_body
from polyhead.serve.openai.schema_fields import DEFAULT_FROM_RUN
from polyhead.serve.service import Service
from polyhead.tokenizers.languages import default_languages, list_languages

PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def list_models(service: Service, exchange: HttpExchange) -> None:
    """List the models: the one that is served."""
    await exchange.send_json({"object": "list", "data": [describe_model(service)]})


async def retrieve_model(service: Service, exchange: HttpExchange) -> None:
    """Return the model by its id."""
    model = exchange.request.path_params["id"]
    if not model:
        raise not_found_error()
    service.check_model(model)
    await exchange.send_json(describe_model(service))


def describe_model(service: Service) -> dict[str, Any]:
    """Return the description of the served model."""
    run, config, limits = service.run, service.run.config, service.limits
    info: dict[str, Any] = {
        "kind": service.kind, "tasks": service.tasks, "max_len": config.max_len,
        "vocab_size": run.tokenizer.vocab_size,
        "dtype": packed_dtype(run.model), "labels": list(config.labels),
            "text_limit": service.card.limit._asdict(),
        "examples": service.card.examples, "explain": not service.explainer.obstacle,
        "nsp_head": reads_pairs(run),
        "limits": {"texts": limits.max_batch, "n": limits.max_n, "beams": limits.max_beams,
            "max_tokens": limits.max_tokens},
    }  # fmt: skip
    if run.recipe is not None:
        info["learned"] = run.recipe.task.name
    if run.recipe is not None and run.recipe.data.source_lang:
        info |= {"source": run.recipe.data.source_lang, "target": run.recipe.data.target_lang}
    if "embeddings" in service.tasks:
        info |= {"embed_max_len": token_limit(run.generation, config.max_len)}
        info |= {"prompts": run.generation.embed_prompts, "prompt": run.generation.embed_prompt}
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


async def get_model_info(service: Service, exchange: HttpExchange) -> None:
    """Return the model as SGLang describes it, for routers."""
    await exchange.send_json(describe_files(service))


async def get_server_info(service: Service, exchange: HttpExchange) -> None:
    """Return the server as SGLang describes it, for routers."""
    engine = service.engine and service.engine.engine
    await exchange.send_json(
        describe_files(service)
        | {
            "served_model_name": service.name,
            "version": version("polyhead"),
            "tp_size": 1,
            "dp_size": 1,
            "max_running_requests": engine.max_num_seqs if engine else service.limits.max_batch,
        }
    )


def describe_files(service: Service) -> dict[str, Any]:
    """Return where the model comes from and how long its texts may be, in SGLang's words."""
    run = service.run
    path = str(run.directory.resolve()) if run.directory else service.name
    return {
        "model_path": path,
        "tokenizer_path": path,
        "model_type": run.family or MODEL_TYPE,
        "is_generation": service.engine is not None,
        "context_length": run.config.max_len,
    }


async def healthz(service: Service, exchange: HttpExchange) -> None:
    """Liveness check."""
    await exchange.send_json({"status": "live"})


async def readyz(service: Service, exchange: HttpExchange) -> None:
    """Readiness check; the error contains the reason."""
    if trouble := service.health_error:
        raise unavailable_error("not_ready", trouble)
    await exchange.send_json({"status": "ready"})


async def get_metrics(service: Service, exchange: HttpExchange) -> None:
    """Return the Prometheus metrics."""
    await exchange.send(Response(service.render_metrics(), media_type=PROMETHEUS_CONTENT_TYPE))


async def get_openapi(service: Service, exchange: HttpExchange) -> None:
    """Return the OpenAPI description."""
    await exchange.send_json(build_openapi())


async def index(service: Service, exchange: HttpExchange) -> None:
    """Return the web page."""
    language = choose_page_language(exchange.request.headers.get("accept-language", ""))
    await _send_page(exchange, render_page(language), content_security_policy(), language)


async def _send_page(exchange: HttpExchange, page: bytes, policy: str, language: str) -> None:
    headers = {"content-security-policy": policy, "content-language": language, "vary": "accept-language"}
    await exchange.send(HTMLResponse(page, headers=headers))


async def explain_page(service: Service, exchange: HttpExchange) -> None:
    """Return the page that walks a text through the model.

    It asks /v1/explain for the numbers, and /v1/models for an example.
    """
    if service.explainer.obstacle:
        raise not_found_error()
    language = choose_page_language(exchange.request.headers.get("accept-language", ""))
    live = {
        "endpoint": "v1/explain",
        "models": "v1/models",
        "has_target": service.kind == "encoder-decoder" or reads_pairs(service.run),
        "translates": service.kind == "encoder-decoder",
        "needs_key": bool(service.api_keys),
    }
    # 300 kB of script and lesson take a quarter of a second the first time
    page, policy = await service.run_in_executor(
        lambda: _render_live_page(language, dump_json(live)), math.inf
    )
    await _send_page(exchange, page, policy, language)


@lru_cache(maxsize=8)
def _render_live_page(language: str, live: bytes) -> tuple[bytes, str]:
    """The page that asks the service with the settings ``live`` (JSON), and its content security policy."""
    chapters = {name: load_chapters(name) for name in UI_LANGUAGES}
    page = render_walk_page(None, language=language, live=json.loads(live), chapters=chapters)
    policy = f"{walk_page_policy(True)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return page.encode(), policy


ROUTES = [
    ApiRoute("GET", "/", index, "demo page", is_public=True),
    ApiRoute("GET", "/explain", explain_page, "page that walks a text through the model", is_public=True),
    ApiRoute("GET", "/v1/models", list_models, "list the served model"),
    ApiRoute("GET", "/v1/models/{id}", retrieve_model, "get a model by id"),
    ApiRoute("POST", "/v1/completions", create_completions, "continue a text"),
    ApiRoute("POST", "/v1/translations", create_translations, "translate"),
    ApiRoute("POST", "/v1/chat/completions", create_chat_completion, "answer a conversation"),
    ApiRoute("POST", "/v1/embeddings", create_embeddings, "compute an embedding per text"),
    ApiRoute("POST", "/v1/tag", create_tags, "find labeled spans in each text"),
    ApiRoute("POST", "/v1/answer", create_answer, "answer a question with words of a context"),
    ApiRoute("POST", "/v1/classify", create_classifications, "classify each text"),
    ApiRoute("POST", "/v1/rerank", create_reranking, "order documents by their relevance to a query"),
    ApiRoute("POST", "/v1/fill-mask", create_mask_predictions, "predict masked tokens"),
    ApiRoute("POST", "/v1/score", create_scores, "compute the log-probability of texts"),
    ApiRoute("POST", "/v1/explain", create_explanation, "walk a text through the model"),
    ApiRoute("POST", "/tokenize", tokenize, "convert text to tokens"),
    ApiRoute("POST", "/detokenize", detokenize, "convert tokens to text"),
    ApiRoute("GET", "/model_info", get_model_info, "files and length of the model, for routers"),
    ApiRoute("GET", "/server_info", get_server_info, "the same with the size of a batch, for routers"),
    ApiRoute("GET", "/health/live", healthz, "liveness: the process answers", is_public=True),
    ApiRoute("GET", "/health/ready", readyz, "readiness: requests are accepted"),
    ApiRoute("GET", "/health", readyz, "the same, also without a key, for routers", is_public=True),
    ApiRoute("GET", "/metrics", get_metrics, "metrics for Prometheus"),
    ApiRoute("GET", "/openapi.json", get_openapi, "this description"),
]


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
            reference = {"$ref": f"#/components/schemas/{route.body.__name__}"}
            content = {"application/json": {"schema": reference}}
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
                "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string",
                    "null"]}, "code": {"type": "string"},
            },
        }
    },
}  # fmt: skip
CONTENT_TYPES = {"/": "text/html", "/explain": "text/html", "/metrics": "text/plain"}
ERROR_DESCRIPTIONS = {
    "400": "invalid field, or not supported by the model", "401": "no valid key",
    "404": "unknown model or path", "405": "the path has other methods",
    "408": "the body was received too slowly",
    "413": "the body is too large", "415": "not JSON by its content type, or compressed",
    "429": "too many queued texts", "431": "the headers are too large",
    "500": "internal error",
    "503": "not ready, or shutting down", "504": "the deadline has passed",
}  # fmt: skip


def _describe_responses(route: ApiRoute) -> dict[str, Any]:
    schema = {} if route.path in CONTENT_TYPES else {"type": "object"}
    content: dict[str, Any] = {CONTENT_TYPES.get(route.path, "application/json"): {"schema": schema}}
    if route.body is not None and "stream" in route.body.model_fields:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": route.summary, "content": content}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    codes = ERROR_DESCRIPTIONS if route.body else ("400", "401", "404", "500", "503")
    errors = {code: {"description": ERROR_DESCRIPTIONS[code], "content": error} for code in codes}
    return responses | errors


def make_app(service: Service) -> App:
    """The application of a service with all routes."""
    return App(service, ROUTES, validate_body)
