"""Endpoints that generate text: completions and translations, complete or streamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from polyhead.core.errors import UserError, format_value
from polyhead.data.documents.document import Document
from polyhead.data.readers.rows import iter_chunks
from polyhead.generation.text_engine import PreparedRequest
from polyhead.introspect.compute_attention import cross_map
from polyhead.introspect.word_alignment import AlignedPair
from polyhead.run.translate_document import Languages, align_outputs, open_document, render_translations
from polyhead.serve.api_errors import invalid_value_error, unsupported_parameter_error
from polyhead.serve.engine_thread import ClientStream, ClientStreams, OutputDelta
from polyhead.serve.http.http_exchange import HttpExchange, finite_or_none
from polyhead.serve.openai.logprobs import check_reply_size, format_tokens, make_echo_outputs
from polyhead.serve.openai.request_builder import build_requests, check_token_ids, count_reading_chars
from polyhead.serve.openai.schemas import CompletionBody, SamplingParams, TranslationBody
from polyhead.serve.service import Service, total_length

READING_FIELDS = ("return_alignments", "return_token_scores")
KEEPALIVE_SECONDS = 15.0  # seconds without output until a keepalive is sent

ChunkFunction = Callable[[ClientStream, OutputDelta], dict[str, Any]]


async def create_completions(service: Service, exchange: HttpExchange, body: CompletionBody) -> None:
    """Generate completions in the format of OpenAI's completions endpoint.

    A decoder continues each prompt; an encoder-decoder generates its output from it.
    """
    service.require_task("completions")
    wants_logprobs = "logprobs" in body.model_fields_set
    if wants_logprobs and ("beam_size" in body.model_fields_set or service.kind != "decoder"):
        raise unsupported_parameter_error(
            "logprobs", "logprobs are supported only for sampled text of a language model"
        )
    for name, hint in (("echo", ""), ("truncate_prompt_tokens", "; use truncate"), ("parse_special", "")):
        if service.kind != "decoder" and getattr(body, name) not in (False, None):
            raise unsupported_parameter_error(name, f"{name} is supported only for language models{hint}")
    if service.engine and body.truncate_prompt_tokens in (-1, service.engine.max_len):
        body.truncate, body.truncate_prompt_tokens = True, None
    if not (body.max_tokens or body.echo):
        raise invalid_value_error("max_tokens", "max_tokens: 0 requires echo=true; expected 1 or more")

    def make_choice(stream: ClientStream, delta: OutputDelta) -> dict[str, Any]:
        fields = outputs[stream.index, delta.row].format_delta(delta)
        index = stream.index * body.n + delta.row
        return {"index": index, **fields, "finish_reason": delta.finish_reason}

    def prepare_requests() -> list[PreparedRequest]:
        options: dict[str, Any] = {"top_logprobs": body.logprobs} if wants_logprobs else {}
        options |= {"parse_special": body.parse_special, "max_prompt_tokens": body.truncate_prompt_tokens}
        for ids in body.prompt:
            if not isinstance(ids, str):
                check_token_ids(service, ids, "prompt")
        return check_reply_size(service, body, build_requests(service, body, body.prompt, **options))

    num_chars = count_reading_chars(service, body, total_length(body.prompt))
    async with service.open_streams(
        prepare_requests,
        len(body.prompt),
        num_chars,
        is_streaming=body.stream,
        has_output=body.max_tokens > 0,
    ) as streams:
        warn_shortened_output(exchange, body, streams)
        warn_special_text(service, exchange, body)
        outputs = await make_echo_outputs(service, body, streams, body.logprobs if wants_logprobs else None)
        await send_choices(service, exchange, body, streams, "cmpl", "text_completion", make_choice)


def warn_shortened_output(exchange: HttpExchange, body: SamplingParams, streams: ClientStreams) -> None:
    """Add a warning to the response if fewer tokens can be generated than were requested."""
    smallest = min(stream.request.state.max_new_tokens for stream in streams.members)
    if "max_tokens" in body.model_fields_set and smallest < body.max_tokens:
        exchange.warnings.insert(
            0, f"{body.max_tokens} output tokens were requested; at most {smallest} can be generated"
        )


def warn_special_text(service: Service, exchange: HttpExchange, body: CompletionBody) -> None:
    """Add a warning to the response if a prompt has the name of a special token, which is read as text."""
    if body.parse_special or service.kind != "decoder":
        return
    pattern = service.run.tokenizer.special_pattern
    found = (pattern.search(text) for text in body.prompt if isinstance(text, str))
    if match := next(filter(None, found), None):
        exchange.warnings.insert(
            0, f"{format_value(match[0])} in the prompt is text; parse_special: true makes it a special token"
        )


async def create_translations(service: Service, exchange: HttpExchange, body: TranslationBody) -> None:
    """Translate each text.

    Beam search returns the best translations first, each with its score; cross-attention is returned on
    request.
    """
    service.require_task("translations")
    if body.format:
        await translate_documents(service, exchange, body)
        return
    for name in ("return_attention", *READING_FIELDS):
        if not getattr(body, name):
            continue
        if body.stream:
            raise unsupported_parameter_error(name, f"{name} cannot be combined with stream")
        if len(service.run.members) > 1:
            raise unsupported_parameter_error(
                name,
                f"{name} is supported for a single model, not for an ensemble of {len(service.run.members)}",
            )
    if (body.source or body.target) and body.return_attention:
        raise unsupported_parameter_error(
            "return_attention", "return_attention is supported only for the run's own language pair"
        )
    head = make_response_head("trans", "translation", service)

    def make_chunk(stream: ClientStream, delta: OutputDelta) -> dict[str, Any]:
        place = {"index": stream.index, "alternative": delta.row}
        return {**place, "text": delta.text, "finish_reason": delta.finish_reason}

    prepare_requests = partial(build_requests, service, body, body.input, **translation_options(body))
    num_chars = count_reading_chars(service, body, total_length(body.input))
    async with service.open_streams(
        prepare_requests, len(body.input), num_chars, is_streaming=body.stream
    ) as streams:
        warn_shortened_output(exchange, body, streams)
        if body.stream:
            await stream_chunks(service, exchange, body, streams, head, "data", make_chunk)
            return
        await streams.wait_finished()
        data = []
        for member, source in zip(streams.members, body.input, strict=True):
            outputs = format_outputs(member, body.return_scores)
            if any(getattr(body, name) for name in READING_FIELDS):
                readings = await read_outputs(service, body, member, source)
                outputs = [one | fields for one, fields in zip(outputs, readings, strict=True)]
            entry: dict[str, Any] = {"index": member.index, **outputs[0]}
            if body.n > 1:
                entry["alternatives"] = outputs[1:]
            if body.return_attention:
                entry["attention"] = await compute_attention(service, source, outputs[0]["text"])
            data.append(entry)
        await exchange.send_json({**head, "data": data, "usage": service.count_usage(streams.members)})


def translation_options(body: TranslationBody) -> dict[str, Any]:
    """The languages and the terminology of a request, as options of the engine."""
    options = {"source_lang": body.source, "target_lang": body.target, "terminology": body.terminology}
    return {name: value for name, value in options.items() if value}


async def translate_documents(service: Service, exchange: HttpExchange, body: TranslationBody) -> None:
    """Translate documents: of each, at most ``max_batch`` sentences at a time."""
    fields = {"stream": body.stream, "n": body.n > 1}
    fields |= {name: getattr(body, name) for name in ("return_attention", *READING_FIELDS)}
    for name in filter(fields.get, fields):
        raise unsupported_parameter_error(name, f"{name} cannot be combined with format")
    languages = body.source or None, body.target or None

    def open_documents() -> list[Document]:
        try:
            return [open_document(service.run, text, body.format or "", *languages) for text in body.input]
        except UserError as error:
            raise invalid_value_error("input", str(error)) from None

    documents = await service.run_in_executor(open_documents, total_length(body.input))
    data, members = list[dict[str, Any]](), list[ClientStream]()
    for index, document in enumerate(documents):
        tokens = list[Sequence[int]]()
        for texts in iter_chunks(document.sentences, service.limits.max_batch):
            prepare_requests = partial(build_requests, service, body, texts, **translation_options(body))
            num_chars = count_reading_chars(service, body, total_length(texts))
            async with service.open_streams(
                prepare_requests, len(texts), num_chars, is_streaming=False
            ) as streams:
                await streams.wait_finished()
                outputs = [member.output for member in streams.members if member.output]
                tokens += [output.request.result()[0].tokens for output in outputs]
                members += streams.members

        render = partial(render_documents, service, languages)
        (text,) = await service.compute_more(("documents", *languages), render, [(document, tokens)])
        data.append({"index": index, "text": text, "finish_reason": "stop"})
    head = make_response_head("trans", "translation", service)
    await exchange.send_json({**head, "data": data, "usage": service.count_usage(members)})


def render_documents(service: Service, languages: Languages, items: list[Any]) -> list[str]:
    """Documents, each with the tokens of its translated sentences, as texts."""
    return [render_translations(service.run, document, tokens, languages) for document, tokens in items]


async def read_outputs(
    service: Service, body: TranslationBody, stream: ClientStream, source: str
) -> list[dict[str, Any]]:
    """Return the aligned words of each output, and its tokens with their log-probabilities, as requested."""
    assert stream.output is not None
    languages = body.source or None, body.target or None

    def read(pairs: list[Any]) -> list[AlignedPair]:
        sources, targets = zip(*pairs, strict=True)
        return align_outputs(service.run, sources, targets, languages)

    pairs = [(source, hypothesis.tokens) for hypothesis in stream.output.request.result()]
    key = ("pairs", body.source, body.target)
    return [
        {
            **({"alignment": reading.alignment} if body.return_alignments else {}),
            **({"tokens": format_tokens(service.run, reading)} if body.return_token_scores else {}),
        }
        for reading in await service.compute_more(key, read, pairs)
    ]


async def compute_attention(service: Service, source: str, target: str) -> dict[str, Any]:
    """Return the cross-attention weights in thousandths: (layers, heads, target tokens, source tokens).

    ``layers`` are the numbers of the layers, from 1; layers without attention weights are left out.
    """

    def compute_maps(pairs: list[Any]) -> list[dict[str, Any]]:
        maps = [cross_map(service.run.attention_maps(*pair)) for pair in pairs]
        return [
            {
                "source": entry.source_tokens, "target": entry.target_tokens, "layers": entry.layers,
                "weights": (entry.weights * 1000).round().int().tolist(),
            }
            for entry in maps
        ]  # fmt: skip

    (maps,) = await service.compute_more("attention", compute_maps, [(source, target)])
    return dict(maps)


async def send_choices(
    service: Service,
    exchange: HttpExchange,
    body: SamplingParams,
    streams: ClientStreams,
    prefix: str,
    kind: str,
    make_choice: ChunkFunction,
) -> None:
    """Send the choices of all outputs: as one response, or as a stream."""
    head = make_response_head(prefix, kind, service)
    if body.stream:
        await stream_chunks(service, exchange, body, streams, head, "choices", make_choice)
        return
    await streams.wait_finished()
    choices = [make_choice(member, result) for member in streams.members for result in member.results()]
    await exchange.send_json({**head, "choices": choices, "usage": service.count_usage(streams.members)})


async def stream_chunks(
    service: Service,
    exchange: HttpExchange,
    body: SamplingParams,
    streams: ClientStreams,
    head: dict[str, Any],
    key: str,
    make_chunk: ChunkFunction,
) -> None:
    """Stream the chunks as they come, then the usage if requested, then the end marker.

    The chunks of all pending updates are sent together; without output for a while a keepalive is sent.
    """
    await exchange.start_stream()
    extra: dict[str, Any] = {"usage": None} if body.stream_options.include_usage else {}
    async for updates in streams.iter_updates(KEEPALIVE_SECONDS):
        chunks = [make_chunk(update.stream, delta) for update in updates for delta in update.deltas]
        if chunks or not updates:
            await exchange.send_events([{**head, key: [chunk], **extra} for chunk in chunks])
    usage = service.count_usage(streams.members)
    if extra:
        await exchange.send_events([{**head, key: [], "usage": usage}])
    await exchange.end_stream()


def format_outputs(stream: ClientStream, with_scores: bool) -> list[dict[str, Any]]:
    """Return the outputs of one request, best first."""
    assert stream.output is not None
    outputs, hypotheses = list[dict[str, Any]](), stream.output.request.result()
    for row, (text, one) in enumerate(zip(stream.output.collect_texts(), hypotheses, strict=False)):
        scores = {"score": finite_or_none(one.score), "confidence": one.confidence} if with_scores else {}
        outputs.append({"text": text, **scores, "finish_reason": stream.output.finish_reasons[row]})
    return outputs


def make_response_head(prefix: str, kind: str, service: Service) -> dict[str, Any]:
    """Return the fields that start every response and every chunk."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": service.name,
    }
