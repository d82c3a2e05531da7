"""Routes that read text and say something of it: vectors, classes, hidden words, likelihood, tokens."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyhead.analysis.classes import check_learned
from polyhead.analysis.vectors import reach, read_as, width
from polyhead.data.framed import Framed, framed_texts
from polyhead.errors import UserError
from polyhead.generate.frame import about_vectors
from polyhead.generate.settings import changed
from polyhead.serve.bodies import (
    ClassifyBody,
    DetokenizeBody,
    EmbeddingBody,
    FillBody,
    ScoreBody,
    TokenizeBody,
)
from polyhead.serve.call import Call
from polyhead.serve.refusal import Refusal, invalid
from polyhead.serve.service import Service
from polyhead.serve.strict import finite
from polyhead.serve.wishes import check_ids
from polyhead.text.masks import count_masks


async def embeddings(service: Service, call: Call, body: EmbeddingBody) -> None:
    """One vector for each text, or for the tokens of one."""
    service.need("embeddings")
    for text in body.input:
        if not isinstance(text, str):
            check_ids(service, text, "input")
    run, numbers = service.run, width(service.run.config)
    if "dimensions" in body.model_fields_set and body.dimensions != numbers:
        raise invalid("dimensions", f"dimensions: this model makes vectors of {numbers} numbers, no others")

    wished = {"pooling": body.pooling, "normalize": body.normalize}
    changes = {key: value for key, value in wished.items() if value is not None}
    changes |= {"prompt": body.prompt} if "prompt" in body.model_fields_set else {}

    def measured() -> list[tuple[Any, int]]:
        config = changed(run.generation, changes, "vectors of texts")
        about = about_vectors(run.config, run.recipe, run.tokenizer)
        most = reach(config, run.config.max_len)
        rows = read_as(run.tokenizer, body.input, config, most, about)
        return _measured(body.input, rows, most, body.truncate)

    def embed(items: list[Any]) -> Any:
        return run.embed([text for text, _ in items], **changes)

    items, vectors = await service.compute(
        ("embed", *changes.items()),
        measured,
        embed,
        body.input,
    )
    whole = vectors.numpy()  # type: ignore[attr-defined]
    if not np.isfinite(whole).all():
        raise Refusal(
            500, "not_a_number", "the model's output is not a number: its weights are damaged or overflow"
        )
    packs = body.encoding_format == "base64"
    told = [
        base64.b64encode(row.astype("<f4").tobytes()).decode() if packs else row.tolist() for row in whole
    ]
    data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(told)]
    await call.reply({"object": "list", "data": data, "model": service.name, "usage": _used(service, items)})


async def classify(service: Service, call: Call, body: ClassifyBody) -> None:
    """The class of each text, or pair of texts, and the probability of every class."""
    service.need("classify")
    run = service.run

    def judge(items: list[Any]) -> Sequence[Any]:
        return run.classify([text for text, _ in items])

    def measured() -> list[tuple[Any, int]]:
        most = reach(run.generation, run.config.max_len)
        rows = framed_texts(body.input, run.tokenizer, most)
        return _measured(body.input, rows, most, body.truncate)

    pairs = not isinstance(body.input[0], str)
    try:
        check_learned(body.input, len(run.recipe.data.text) if run.recipe else 0)
    except UserError as error:
        raise invalid("input", str(error)) from None
    items, found = await service.compute(("classify", pairs), measured, judge, body.input)
    data = [
        {"index": i, "label": one.label, "score": one.probabilities[one.label], "scores": one.probabilities}
        for i, one in enumerate(found)
    ]
    await call.reply({"object": "list", "data": data, "model": service.name, "usage": _used(service, items)})


async def fill_mask(service: Service, call: Call, body: FillBody) -> None:
    """The likeliest tokens behind each mask of each text."""
    service.need("fill-mask")

    def fill(texts: list[Any]) -> Sequence[Any]:
        return service.run.fill_mask(texts, body.top_k)

    _, found = await service.compute(("fill", body.top_k), lambda: _fillable(service, body), fill, body.input)
    data = [
        {
            "index": i,
            "masks": [
                [{"token_str": f.token, "score": f.probability, "sequence": f.text} for f in mask]
                for mask in masks
            ],
        }
        for i, masks in enumerate(found)
    ]
    await call.reply({"object": "list", "data": data, "model": service.name})


async def score(service: Service, call: Call, body: ScoreBody) -> None:
    """The log-probability of each text, or of each target after its source."""
    service.need("score")
    paired = "target" in body.model_fields_set
    if paired != (service.kind == "encoder-decoder"):
        wanted = (
            "an encoder-decoder judges targets: give one for each input"
            if not paired
            else "a language model judges texts alone"
        )
        raise invalid("target", f"target: {wanted}")
    if paired and len(body.target) != len(body.input):
        raise invalid("target", f"target has {len(body.target)} texts and input {len(body.input)}")

    def judge(items: list[Any]) -> Sequence[Any]:
        sources, targets = zip(*items, strict=True)
        return service.run.score(sources, targets if paired else None)

    pairs = list(zip(body.input, body.target if paired else body.input, strict=True))
    _, found = await service.compute(("score", paired), lambda: _bounded(service, pairs), judge, pairs)
    data = [
        {
            "index": i,
            "log_prob": finite(one.log_prob),
            "tokens": one.tokens,
            "perplexity": _perplexity(one.log_prob, one.tokens),
        }
        for i, one in enumerate(found)
    ]
    await call.reply({"object": "list", "data": data, "model": service.name})


async def tokenize(service: Service, call: Call, body: TokenizeBody) -> None:
    """The tokens of a text, special ones not among them."""
    (ids,) = await service.aside(lambda: service.run.tokenizer.encode([body.prompt]), len(body.prompt))
    names = {"token_strs": service.run.tokenizer.tokens(ids)} if body.return_token_strs else {}
    await call.reply({"tokens": ids, "count": len(ids), "max_model_len": service.run.config.max_len, **names})


async def detokenize(service: Service, call: Call, body: DetokenizeBody) -> None:
    """The text of tokens, special ones left out."""
    check_ids(service, body.tokens, "tokens")
    (text,) = await service.aside(lambda: service.run.tokenizer.decode([body.tokens]), len(body.tokens))
    await call.reply({"prompt": text})


def _measured(
    texts: Sequence[Any], rows: Sequence[Framed], most: int, truncate: bool
) -> list[tuple[Any, int]]:
    """Each text or pair with the number of its tokens; one that would be cut is refused, unless that is wished."""
    for number, row in enumerate(rows, 1):
        if row.cut and not truncate:
            raise Refusal(
                400, "context_length_exceeded",
                f"text {number} has more tokens than this model reads ({most}, special ones counted): split it, or send truncate=true", "input",
            )  # fmt: skip
    return [(text, len(row.ids)) for text, row in zip(texts, rows, strict=True)]


def _bounded(service: Service, texts: Sequence[Any]) -> list[Any]:
    """The texts or pairs, if none is far too long: the model's thread is not to find that out by reading it all."""
    tokenizer, most = service.run.tokenizer, service.run.config.max_len
    sides = [(text,) if isinstance(text, str) else text for text in texts]
    for number, side in enumerate(sides, 1):
        longest = max(map(len, tokenizer.encode(side[:1]) + tokenizer.target.encode(side[1:])))
        if longest > most:
            raise Refusal(
                400,
                "context_length_exceeded",
                f"text {number} has {longest} tokens; this model reads {most} at once: split it",
                "input",
            )
    return list(texts)


def _fillable(service: Service, body: FillBody) -> list[Any]:
    """The texts, if the answer is not far longer: each token behind each mask is told with its whole text."""
    masks, most = count_masks(service.run.tokenizer, body.input), service.limits.body
    told = body.top_k * sum(number * len(text) for number, text in zip(masks, body.input, strict=True))
    if told > most:
        raise Refusal(
            400,
            "answer_too_long",
            f"{sum(masks)} masks with {body.top_k} tokens each would be told in {told:,} characters, "
            f"{most:,} at most: send fewer masks at once, or a lower top_k",
            "input",
        )
    return _bounded(service, body.input)


def _used(service: Service, items: Sequence[tuple[Any, int]]) -> dict[str, int]:
    read = sum(tokens for _, tokens in items)
    service.meters.tokens.labels("prompt").inc(read)
    return {"prompt_tokens": read, "total_tokens": read}


def _perplexity(log_prob: float, tokens: int) -> float | None:
    """exp of the mean negative log-probability of a token, if a number can hold it."""
    mean = -log_prob / max(1, tokens)
    return math.exp(mean) if mean < 700 else None
