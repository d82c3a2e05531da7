"""Routes that make text: completions and translations, whole or as they come."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from polyhead.analysis.token_maps import cross_map
from polyhead.generate.service import Asked
from polyhead.serve.bodies import CompletionBody, Drawing, TranslationBody
from polyhead.serve.call import Call
from polyhead.serve.echo import bounded, echoed
from polyhead.serve.refusal import invalid, unsupported
from polyhead.serve.service import Service
from polyhead.serve.strict import finite
from polyhead.serve.talk import Piece, Talk, Talks
from polyhead.serve.wishes import asked

HEARTBEAT = 15.0  # seconds after which a stream says that it lives

Chunk = Callable[[Talk, Piece], dict[str, Any]]


async def completions(service: Service, call: Call, body: CompletionBody) -> None:
    """Go on from each prompt, or say what an encoder-decoder makes of it, in the shape of OpenAI's completions."""
    service.need("completions")
    wants = "logprobs" in body.model_fields_set
    if wants and ("beam_size" in body.model_fields_set or service.kind != "decoder"):
        raise unsupported("logprobs", "logprobs are given for sampled text of a language model only")
    if body.echo and service.kind != "decoder":
        raise unsupported("echo", "echo is for language models: no other continues its prompt")
    if not (body.max_tokens or body.echo):
        raise invalid("max_tokens", "max_tokens: 0 tells the prompt alone, with echo=true; wanted 1 or more")
    about = head("cmpl", "text_completion", service)

    def chunk(talk: Talk, piece: Piece) -> dict[str, Any]:
        told = found[talk.number, piece.row].told(piece)
        reason = reason_of(talk, piece.row) if piece.last else None
        return {"index": talk.number * body.n + piece.row, **told, "finish_reason": reason}

    def read() -> list[Asked]:
        tops = {"top": body.logprobs} if wants else {}
        return bounded(service, body, asked(service, body, body.prompt, **tops))

    async with service.talking(read, body.prompt, body) as talks:
        found = await echoed(service, body, talks, body.logprobs if wants else None)
        if body.stream:
            await stream(service, call, body, talks, about, "choices", chunk)
            return
        await talks.whole()
        choices = [chunk(talk, piece) for talk in talks.all for piece in talk.whole()]
        await call.reply({**about, "choices": choices, "usage": service.count(talks.all)})


async def translations(service: Service, call: Call, body: TranslationBody) -> None:
    """Translate each text; what beams find best first, each with its score, and where the decoder looked if that is wanted."""
    service.need("translations")
    if body.stream and body.return_attention:
        raise unsupported("return_attention", "return_attention needs a whole translation: leave out stream")
    languages = {
        f"{side}_lang": name for side, name in (("source", body.source), ("target", body.target)) if name
    }
    if languages and body.return_attention:
        raise unsupported("return_attention", "attention is told for the languages of the run alone")
    if body.return_attention and len(service.run.members) > 1:
        raise unsupported(
            "return_attention",
            f"attention is told of one model, and here {len(service.run.members)} decide together",
        )
    about = head("trans", "translation", service)

    def chunk(talk: Talk, piece: Piece) -> dict[str, Any]:
        told = {"index": talk.number, "alternative": piece.row, "text": piece.text}
        return told | {"finish_reason": reason_of(talk, piece.row) if piece.last else None}

    wishes = languages | ({"terms": body.terms} if body.terms else {})
    read = partial(asked, service, body, body.input, **wishes)
    async with service.talking(read, body.input, body) as talks:
        if body.stream:
            await stream(service, call, body, talks, about, "data", chunk)
            return
        await talks.whole()
        data = []
        for talk, source in zip(talks.all, body.input, strict=True):
            found = outputs(talk, body.return_scores)
            told: dict[str, Any] = {"index": talk.number, **found[0]}
            if body.n > 1:
                told["alternatives"] = found[1:]
            if body.return_attention:
                told["attention"] = await attention(service, source, found[0]["text"])
            data.append(told)
        await call.reply({**about, "data": data, "usage": service.count(talks.all)})


async def attention(service: Service, source: str, target: str) -> dict[str, Any]:
    """Where the decoder looked, in thousandths: layers, heads, a row for each target token, a column for each source token.

    ``layers`` are the numbers of the layers, from 1: those without weights to show are left out.
    """

    def look(pairs: list[Any]) -> list[dict[str, Any]]:
        found = [cross_map(service.run.attention_maps(*pair)) for pair in pairs]
        return [
            {
                "source": one.source_tokens, "target": one.target_tokens, "layers": one.layers,
                "weights": (one.weights * 1000).round().int().tolist(),
            }
            for one in found
        ]  # fmt: skip

    (found,) = await service.compute_more("attention", look, [(source, target)])
    return dict(found)


async def stream(
    service: Service, call: Call, body: Drawing, talks: Talks, about: dict[str, Any], key: str, chunk: Chunk
) -> None:
    """Send each piece as it comes, the tokens used at the end, if that is wanted, and the mark of the end."""
    await call.open()
    tells: dict[str, Any] = {"usage": None} if body.stream_options.include_usage else {}
    await pass_on(call, talks, lambda talk, piece: [{**about, key: [chunk(talk, piece)], **tells}])
    usage = service.count(talks.all)
    if tells:
        await call.events([{**about, key: [], "usage": usage}])
    await call.close()


async def pass_on(
    call: Call, talks: Talks, events: Callable[[Talk, Piece], Iterable[dict[str, Any]]]
) -> None:
    """Send the events of each piece as it comes, those together that are there, and a sign of life where nothing comes for long."""
    async for news in talks.news(HEARTBEAT):
        found = [event for one in news for piece in one.pieces for event in events(one.talk, piece)]
        if found:
            await call.events(found)
        elif not news:
            await call.pulse()


def outputs(talk: Talk, scores: bool) -> list[dict[str, Any]]:
    """The texts that became of one, best first."""
    assert talk.stream is not None
    found = talk.stream.request.result()
    return [
        {
            "text": text,
            **({"score": finite(hypothesis.score)} if scores else {}),
            "finish_reason": reason_of(talk, row),
        }
        for row, (text, hypothesis) in enumerate(zip(talk.stream.texts(), found, strict=False))
    ]


def reason_of(talk: Talk, row: int) -> str:
    """How an output ended, truthfully."""
    reason = talk.stream.reasons[row] or "stop" if talk.stream else "length"
    return {"cancelled": "abort"}.get(reason, reason)


def head(prefix: str, kind: str, service: Service) -> dict[str, Any]:
    """What every answer and every event of it begins with."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": service.name,
    }
