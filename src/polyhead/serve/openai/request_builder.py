"""Convert request fields to engine requests, for generated and for translated text."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

from polyhead.config.generation_config import SAMPLING_KEYS, SETTING_USES, GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.generation.constraints.terminology import Terminology
from polyhead.generation.prompt_template import keep_last
from polyhead.generation.text_engine import PreparedRequest, TextEngine
from polyhead.serve.api_errors import ApiError, invalid_value_error
from polyhead.serve.openai.schemas import SamplingParams
from polyhead.serve.service import Service
from polyhead.tokenizers.languages import with_languages

SETTING_FIELDS = {name: use.http for name, use in SETTING_USES.items() if use.http is not None}
"""The fields of requests that are settings, by engine option."""
NEUTRAL_SETTINGS = {
    name: GenerationConfig.model_fields[name].default
    for name, http in SETTING_FIELDS.items()
    if http.ignored_value == "default"
}
"""Values without effect; taken also where the setting has none, in beam search or sampling."""
# engine option -> request field, for messages
FIELD_NAMES = {name: http.name for name, http in SETTING_FIELDS.items() if http.name}
FIELD_NAMES |= {"max_new_tokens": "max_tokens", "n_best": "n"}


def build_requests(
    service: Service,
    body: SamplingParams,
    texts: Sequence[str | list[int]],
    *,
    parse_special: bool = False,
    max_prompt_tokens: int | None = None,
    **options: Any,
) -> list[PreparedRequest]:
    """Encode the texts of a request; an ApiError names the field that cannot be satisfied.

    With ``parse_special`` names of special tokens are these tokens. Of each text only the last
    ``max_prompt_tokens`` tokens are kept. ``options`` are engine options that are not fields of the body.
    """
    engine, fields_set = service.engine, body.model_fields_set
    assert engine is not None
    engine_options: dict[str, Any] = {
        name: getattr(body, field)
        for name, http in SETTING_FIELDS.items()
        if (field := http.name or name) in fields_set
        and (http.ignored_value != "of the run" or getattr(body, field) != getattr(engine.config, name))
    }
    if engine_options.get("top_k") == -1:
        engine_options["top_k"] = 0
    has_beams = "beam_size" in engine_options
    if engine.prompt_template is None and not has_beams:  # a translation is sampled if anything asks for it
        names = SAMPLING_KEYS & engine_options.keys()
        has_beams = all(NEUTRAL_SETTINGS.get(name) == engine_options[name] for name in names)
    ineffective = NEUTRAL_SETTINGS.keys() - {"length_penalty"} if has_beams else {"length_penalty"}
    for name in ineffective & engine_options.keys():
        if engine_options[name] == NEUTRAL_SETTINGS[name]:
            del engine_options[name]
    if engine_options.get("beam_size") and engine_options.get("temperature") == 0:
        del engine_options["temperature"]  # beam search does not sample
    engine_options |= {"n": body.n, "stop": body.stop, "stop_token_ids": body.stop_token_ids}
    engine_options |= {"ignore_eos": body.ignore_eos, **grammar_of(body, engine), **options}
    if "terminology" in options:
        try:
            terms = Terminology(options["terminology"], engine.tokenizer.target_tokenizer)
        except UserError as error:
            raise _to_field_error(str(error), body) from None
        engine_options["terminology"] = terms
    requests = []
    for text in texts:
        ids = engine.encode_prompt(text, parse_special) if isinstance(text, str) else text
        if max_prompt_tokens is not None:
            ids = keep_last(ids, max_prompt_tokens, engine.tokenizer.prefix_ids)
            if len(ids) > engine.max_len:
                raise invalid_value_error(
                    "truncate_prompt_tokens",
                    f"truncate_prompt_tokens is {max_prompt_tokens}; the model's maximum is "
                    f"{engine.max_len}: send -1 to keep as many tokens as it can read",
                )
        seed = body.seed if body.seed >= 0 else 0 if service.deterministic else secrets.randbelow(2**31)
        try:
            ids, length_options = (_fit_prompt if engine.prompt_template else _fit_source)(
                service, engine, body, ids, options
            )
            requests.append(engine.prepare_request(ids, seed=seed, **engine_options, **length_options))
        except UserError as error:
            raise _to_field_error(str(error), body) from None
        if "terminology" in options and (width := requests[-1].state.width) > service.limits.max_beams:
            raise invalid_value_error(
                "terminology",
                f"terminology: the terms of a text require {width} hypotheses, one more for each of their "
                f"tokens; the maximum is {service.limits.max_beams}",
            )
    return requests


def count_reading_chars(service: Service, body: SamplingParams, num_chars: int) -> float:
    """Length for ``run_in_executor``: infinite with a grammar, which may take seconds to compile."""
    grammar: Any = body.response_format or body.structured_outputs or body.grammar
    grammar = grammar or (service.engine and service.engine.config.grammar)
    return math.inf if grammar else num_chars


def grammar_of(body: SamplingParams, engine: TextEngine) -> dict[str, Choice | None]:
    """Return the grammar that the request asks for, if any.

    An explicit ``response_format`` of type text disables the grammar of the run.
    """
    grammars = []
    response_format, structured_outputs = body.response_format, body.structured_outputs
    if response_format is not None and response_format.type == "json_schema":
        if response_format.json_schema is None:
            raise invalid_value_error("response_format", "response_format: json_schema is missing")
        grammars.append(Choice("json", schema=response_format.json_schema.schema_))
    elif response_format is not None and response_format.type == "json_object":
        grammars.append(Choice("json"))
    if structured_outputs is not None:
        options = {"regex": "pattern", "choice": "choices", "json": "schema", "grammar": "lark"}
        fields = structured_outputs.model_dump(by_alias=True, exclude_none=True)
        grammar_fields = {name: value for name, value in fields.items() if name in options}
        grammars += [Choice(name, **{options[name]: value}) for name, value in grammar_fields.items()]
        if not grammar_fields:
            raise invalid_value_error(
                "structured_outputs", f"structured_outputs has none of {', '.join(options)}"
            )
    if body.grammar is not None:
        grammars.append(Choice("grammar", lark=body.grammar))
    if len(grammars) > 1:
        raise invalid_value_error(
            "structured_outputs" if structured_outputs is not None else "grammar",
            "response_format, structured_outputs and grammar cannot be combined",
        )
    if grammars:
        return {"grammar": grammars[0]}
    return {"grammar": None} if response_format is not None and engine.config.grammar else {}


def check_token_ids(service: Service, ids: Sequence[int], field: str) -> None:
    """Reject ids outside of the vocabulary."""
    max_id = service.run.tokenizer.vocab_size - 1
    for token in ids:
        if not 0 <= token <= max_id:
            raise invalid_value_error(
                field, f"{field}: no token {format_value(token)}; the vocabulary has 0 to {max_id}"
            )


def _fit_prompt(
    service: Service, engine: TextEngine, body: SamplingParams, ids: list[int], options: dict[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """Fit a prompt into the context; return its ids and ``max_new_tokens``.

    A requested ``max_tokens`` is reduced to the room after the prompt; the last token needs none, because
    it is no input. A truncated prompt and its new tokens fit the context, as in vLLM. A conversation has
    already been truncated message by message; nothing more of it is cut.
    """
    max_len, is_explicit = engine.max_len, "max_tokens" in body.model_fields_set
    # at least one token is generated, also for max_tokens=0
    default = service.default_max_tokens
    requested = min(max(1, body.max_tokens), service.limits.max_tokens)
    if body.truncate:
        num_new = requested if is_explicit else default
        if "turn_ends" in options:  # of a conversation
            return ids, {"max_new_tokens": min(num_new, max_len - len(ids))}
        if not is_explicit or num_new >= max_len:
            num_new = min(num_new, max(max_len // 2, max_len - len(ids)))
        room = max_len - (num_new if body.max_tokens else 0)
        return keep_last(ids, room, engine.tokenizer.prefix_ids), {"max_new_tokens": num_new}
    if len(ids) > max_len:
        message = (
            f"the prompt has {len(ids)} tokens; the model's maximum is {max_len}: request less, or send "
            "truncate=true to keep only the end of the prompt"
        )
        raise ApiError(400, "context_length_exceeded", message, "prompt")
    return ids, {"max_new_tokens": min(requested if is_explicit else default, max_len - len(ids) + 1)}


def _fit_source(
    service: Service, engine: TextEngine, body: SamplingParams, ids: list[int], languages: dict[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """Fit a source into the context; return its ids and the length limit of its translation."""
    sides = with_languages(engine.tokenizer, languages.get("source_lang"), languages.get("target_lang"))
    room = engine.max_len - len(sides.encoder_input(()))
    if len(ids) > room:
        if not body.truncate:
            message = (
                f"the text has {len(ids)} tokens; the model's maximum is {room}: split it, or send "
                "truncate=true to translate its beginning"
            )
            raise ApiError(400, "context_length_exceeded", message, "input")
        ids = ids[:room]
    if "max_tokens" not in body.model_fields_set:
        return ids, {}
    max_tokens = min(body.max_tokens, engine.max_len, service.limits.max_tokens)
    return ids, {"max_length_ratio": 0.0, "max_length_extra": max_tokens}


def _to_field_error(message: str, body: SamplingParams) -> ApiError:
    """Convert an engine error to an error that names the request field."""
    message = message.partition("; valid settings:")[0]
    for engine_name, field in FIELD_NAMES.items():
        message = message.replace(engine_name, field)
    name = message.partition(" ")[0].rstrip(":")
    if name == "grammar":
        given = (field for field in ("structured_outputs", "grammar") if getattr(body, field) is not None)
        name = next(given, "response_format")
    return invalid_value_error(name if name in type(body).model_fields else None, message)
