"""Endpoints that read text: embeddings, classification, mask filling, scoring, explanation, tokenization."""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.data.batching.encoder_inputs import EncoderInput, encode_texts
from polyhead.evaluate.classify import check_text_arity
from polyhead.evaluate.embed import (
    Layers,
    TokenEmbeddings,
    check_dimensions,
    prepare_inputs,
    resolve_layers,
    token_limit,
)
from polyhead.generation.settings import with_overrides
from polyhead.serve.api_errors import ApiError, invalid_value_error
from polyhead.serve.http.http_exchange import HttpExchange, dump_json, dump_json_list
from polyhead.serve.openai.request_builder import check_token_ids
from polyhead.serve.openai.schemas import (
    AnswerBody,
    ClassifyBody,
    DetokenizeBody,
    EmbeddingBody,
    ExplainBody,
    FillBody,
    RerankBody,
    ScoreBody,
    TagBody,
    TokenizeBody,
)
from polyhead.serve.service import Service
from polyhead.tokenizers.mask_tokens import count_masks

LARGE_DOCUMENT = 10**6  # characters, as which a document counts that is encoded outside of the event loop


async def create_embeddings(service: Service, exchange: HttpExchange, body: EmbeddingBody) -> None:
    """Return an embedding for each text or list of token ids, or for each of its tokens or layers."""
    service.require_task("embeddings")
    for text in body.input:
        if not isinstance(text, str):
            check_token_ids(service, text, "input")
    run, has_layers = service.run, "layers" in body.model_fields_set
    dimensions = body.dimensions if "dimensions" in body.model_fields_set else None
    try:
        check_dimensions(dimensions, run.config, not (body.tokens or has_layers))
    except UserError as error:
        raise invalid_value_error("dimensions", str(error)) from None

    overrides = {"pooling": body.pooling, "normalize": body.normalize}
    changes: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    changes |= {"embed_prompt": body.prompt} if "prompt" in body.model_fields_set else {}
    try:
        layers = resolve_layers(cast(Layers, body.layers), run.config.n_layers) if has_layers else None
    except UserError as error:
        raise invalid_value_error("layers", str(error)) from None
    if body.tokens and "pooling" in changes:
        raise invalid_value_error(
            "pooling", "pooling makes one vector of a text; tokens returns one of each token"
        )

    def check_lengths() -> list[tuple[Any, int]]:
        config = with_overrides(run.generation, changes, "text embeddings")
        template = run.embedding_template
        max_len = token_limit(config, run.config.max_len)
        rows = prepare_inputs(run.tokenizer, body.input, config, max_len, template)
        items = _check_lengths(body.input, rows, max_len, body.truncate)
        count = (sum(length for _, length in items) if body.tokens else len(items)) * len(layers or [-1])
        if count > service.limits.max_embeddings:
            message = (
                f"the response would have {count:,} vectors; the maximum is "
                f"{service.limits.max_embeddings:,}: send fewer texts at once, or fewer layers"
            )
            raise ApiError(400, "answer_too_long", message, "input")
        return items

    work: Any = run.embed_tokens if body.tokens else run.embed
    embed = partial(work, layers=layers, dimensions=dimensions, **changes)
    key = "embed", body.tokens, dimensions, None if layers is None else tuple(layers), *changes.items()
    embeddings, usage = await _compute_counted(service, key, check_lengths, embed, body.input)
    fields = {"object": "list", "model": service.name, "usage": usage}

    def encode_answer() -> bytes:
        data = (_format_embedding(i, one, body, layers) for i, one in enumerate(embeddings))
        return dump_json_list(fields, "data", data)

    n_numbers = sum(_get_vectors(one).numel() for one in embeddings)
    await exchange.send_json(await service.run_in_executor(encode_answer, n_numbers))


def _format_embedding(
    index: int, result: Tensor | TokenEmbeddings, body: EmbeddingBody, layers: list[int] | None
) -> dict[str, Any]:
    """Return the embedding of a text: (C,), with tokens (T, C), with layers (L, C) or (L, T, C)."""
    names: dict[str, Any] = {} if layers is None else {"layers": layers}
    if isinstance(result, TokenEmbeddings):
        names["tokens"] = result.tokens
    vectors = _get_vectors(result).numpy()
    value: Any = vectors.tolist()
    if body.encoding_format == "base64":
        value = base64.b64encode(vectors.astype("<f4").tobytes()).decode()
    shape = {"shape": list(vectors.shape)} if vectors.ndim > 1 else {}
    return {"object": "embedding", "index": index, "embedding": value, **shape, **names}


def _get_vectors(result: Tensor | TokenEmbeddings) -> Tensor:
    return result.vectors if isinstance(result, TokenEmbeddings) else result


async def create_classifications(service: Service, exchange: HttpExchange, body: ClassifyBody) -> None:
    """Return the class of each text or pair of texts, and the probability of every class."""
    service.require_task("classify")
    try:
        check_text_arity(body.input, len(service.run.recipe.data.text) if service.run.recipe else 0)
    except UserError as error:
        raise invalid_value_error("input", str(error)) from None
    predictions, usage = await _classify(service, body.input, body.truncate)
    has_labels = service.run.config.problem_type == "multi_label_classification"
    data = [
        {"label": one.label, "score": one.probabilities[one.label], "scores": one.probabilities}
        | ({"labels": list(one.labels)} if has_labels else {})
        for one in predictions
    ]
    await _send_list(service, exchange, data, usage=usage)


async def create_tags(service: Service, exchange: HttpExchange, body: TagBody) -> None:
    """Return the labeled spans of each text; long texts are read in windows."""
    service.require_task("tag")

    def count_tokens() -> list[tuple[Any, int]]:
        rows = service.run.tokenizer.encode(body.input)
        return [(text, len(ids)) for text, ids in zip(body.input, rows, strict=True)]

    results, usage = await _compute_counted(service, ("tag",), count_tokens, service.run.tag, body.input)
    data = [{"spans": [span._asdict() for span in spans]} for spans in results]
    await _send_list(service, exchange, data, usage=usage)


async def create_answer(service: Service, exchange: HttpExchange, body: AnswerBody) -> None:
    """Return the words of the context that answer the question, "" if none do."""
    service.require_task("answer")
    pair = body.question, body.context
    if is_blank(body.question):
        raise invalid_value_error("question", "question is empty: expected text")

    def count_tokens() -> list[tuple[Any, int]]:
        return [(pair, sum(map(len, service.run.tokenizer.encode(pair))))]

    work = service.run.answer_all
    (answer,), usage = await _compute_counted(service, ("answer",), count_tokens, work, pair[1:])
    head = {"id": f"answer-{uuid.uuid4().hex}", "model": service.name}
    await exchange.send_json({**head, **answer._asdict(), "usage": usage})


async def create_reranking(service: Service, exchange: HttpExchange, body: RerankBody) -> None:
    """Score documents by how well they answer a query; the most relevant come first."""
    service.require_task("rerank")
    pairs = [(body.query, document) for document in body.documents]
    try:
        predictions, usage = await _classify(service, pairs, body.truncate)
    except ApiError as refusal:
        refusal.param = "documents" if refusal.param == "input" else refusal.param
        raise
    scores = [prediction.probabilities[prediction.label] for prediction in predictions]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    results = [
        {"index": i, "relevance_score": scores[i]}
        | ({"document": {"text": body.documents[i]}} if body.return_documents else {})
        for i in order[: body.top_n if "top_n" in body.model_fields_set else None]
    ]
    head = {"id": f"rerank-{uuid.uuid4().hex}", "model": service.name}
    await exchange.send_json({**head, "results": results, "usage": usage})


async def _classify(
    service: Service, texts: list[str] | list[tuple[str, str]], truncate: bool
) -> tuple[Sequence[Any], dict[str, int]]:
    """Classify texts or pairs; return the predictions and the usage."""
    run = service.run

    def check_lengths() -> list[tuple[Any, int]]:
        max_len = token_limit(run.generation, run.config.max_len)
        return _check_lengths(texts, encode_texts(texts, run.tokenizer, max_len), max_len, truncate)

    key = ("classify", not isinstance(texts[0], str))
    return await _compute_counted(service, key, check_lengths, run.classify, texts)


async def _compute_counted(
    service: Service,
    key: Hashable,
    check: Callable[[], list[tuple[Any, int]]],
    work: Callable[[list[Any]], Sequence[Any]],
    texts: Sequence[Any],
) -> tuple[Sequence[Any], dict[str, int]]:
    """The results of ``Service.compute``, and the usage; ``check`` returns texts with their token counts."""
    items, results = await service.compute(key, check, lambda batch: work([text for text, _ in batch]), texts)
    num_tokens = sum(tokens for _, tokens in items)
    service.metrics.tokens.labels("prompt").inc(num_tokens)
    return results, {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def create_mask_predictions(service: Service, exchange: HttpExchange, body: FillBody) -> None:
    """Return the most likely tokens for each mask of each text."""
    service.require_task("fill-mask")
    check, work = partial(_check_reply_size, service, body), partial(service.run.fill_mask, top_k=body.top_k)
    _, predictions = await service.compute(("fill", body.top_k), check, work, body.input)
    data = [
        {
            "masks": [
                [{"token_str": f.token, "score": f.probability, "sequence": f.text} for f in mask]
                for mask in masks
            ]
        }
        for masks in predictions
    ]
    await _send_list(service, exchange, data)


async def create_scores(service: Service, exchange: HttpExchange, body: ScoreBody) -> None:
    """Return the log-probability of each text, or of each target given its source."""
    service.require_task("score")
    paired = "target" in body.model_fields_set
    if paired != (service.kind == "encoder-decoder"):
        expected = "an encoder-decoder requires one target for each input"
        expected = "a language model takes no targets" if paired else expected
        raise invalid_value_error("target", f"target: {expected}")
    if paired and len(body.target) != len(body.input):
        message = f"target has {len(body.target)} texts and input {len(body.input)}"
        raise invalid_value_error("target", message)

    def score_batch(items: list[Any]) -> Sequence[Any]:
        sources, targets = zip(*items, strict=True)
        return service.run.score(sources, targets if paired else None)

    pairs = list(zip(body.input, body.target if paired else body.input, strict=True))
    _, scores = await service.compute(
        ("score", paired), lambda: _check_text_lengths(service, pairs), score_batch, pairs
    )
    data = [score._asdict() | {"perplexity": _perplexity(*score)} for score in scores]
    await _send_list(service, exchange, data)


async def _send_list(
    service: Service, exchange: HttpExchange, data: list[dict[str, Any]], **fields: Any
) -> None:
    """Send results, each with the index of its text."""
    items = [{"index": i, **one} for i, one in enumerate(data)]
    await exchange.send_json({"object": "list", "data": items, "model": service.name, **fields})


async def create_explanation(service: Service, exchange: HttpExchange, body: ExplainBody) -> None:
    """Return the explanation of a text, or with ``lever`` what one setting of it changes."""
    if obstacle := service.explainer.obstacle:
        raise ApiError(400, "wrong_task", obstacle, "model")
    fields = body.model_dump(exclude_unset=True, exclude={"model"})
    for name in ("setting", "attention"):
        if "lever" not in fields and name in fields:
            raise invalid_value_error(name, f"{name}: requires a lever")
    document = await service.explainer.explain_text(**fields)
    if "lever" in fields:
        document = {"object": "explain.lever", "model": service.name, **document}
    await exchange.send_json(await service.run_in_executor(lambda: dump_json(document), LARGE_DOCUMENT))


async def tokenize(service: Service, exchange: HttpExchange, body: TokenizeBody) -> None:
    """Return the tokens of a text, without special tokens."""
    (ids,) = await service.run_in_executor(
        lambda: service.run.tokenizer.encode([body.prompt]), len(body.prompt)
    )
    names = {"token_strs": service.run.tokenizer.ids_to_tokens(ids)} if body.return_token_strs else {}
    await exchange.send_json(
        {"tokens": ids, "count": len(ids), "max_model_len": service.run.config.max_len, **names}
    )


async def detokenize(service: Service, exchange: HttpExchange, body: DetokenizeBody) -> None:
    """Return the text of tokens, without special tokens."""
    check_token_ids(service, body.tokens, "tokens")
    (text,) = await service.run_in_executor(
        lambda: service.run.tokenizer.decode([body.tokens]), len(body.tokens)
    )
    await exchange.send_json({"prompt": text})


def _check_lengths(
    texts: Sequence[Any], rows: Sequence[EncoderInput], max_len: int, truncate: bool
) -> list[tuple[Any, int]]:
    """Return each text or pair with its number of tokens.

    A text that would be cut is rejected, unless ``truncate`` is set.
    """
    for number, row in enumerate(rows, 1):
        if row.truncated and not truncate:
            message = (
                f"text {number} has more tokens than the model's maximum ({max_len}, including special "
                "tokens): split it, or send truncate=true"
            )
            raise ApiError(400, "context_length_exceeded", message, "input")
    return [(text, len(row.ids)) for text, row in zip(texts, rows, strict=True)]


def _check_text_lengths(service: Service, texts: Sequence[Any]) -> list[Any]:
    """Return the texts or pairs, or reject them if one is too long, before they reach the engine thread."""
    tokenizer, max_len = service.run.tokenizer, service.run.config.max_len
    sides = [(text,) if isinstance(text, str) else text for text in texts]
    for number, side in enumerate(sides, 1):
        longest = max(map(len, tokenizer.encode(side[:1]) + tokenizer.target_tokenizer.encode(side[1:])))
        if longest > max_len:
            message = f"text {number} has {longest} tokens; the model's maximum is {max_len}: split it"
            raise ApiError(400, "context_length_exceeded", message, "input")
    return list(texts)


def _check_reply_size(service: Service, body: FillBody) -> list[Any]:
    """Return the texts, or reject them if the response could exceed the size limit.

    Each predicted token is returned with the complete text.
    """
    masks, max_chars = count_masks(service.run.tokenizer, body.input), service.limits.max_body
    num_chars = body.top_k * sum(number * len(text) for number, text in zip(masks, body.input, strict=True))
    if num_chars > max_chars:
        message = (
            f"{sum(masks)} masks with {body.top_k} tokens each would take {num_chars:,} characters; the "
            f"maximum is {max_chars:,}: send fewer masks at once, or a lower top_k"
        )
        raise ApiError(400, "answer_too_long", message, "input")
    return _check_text_lengths(service, body.input)


def _perplexity(log_prob: float, tokens: int) -> float | None:
    """exp of the mean negative log-probability of a token; None if it overflows."""
    mean = -log_prob / max(1, tokens)
    return math.exp(mean) if mean < 700 else None
