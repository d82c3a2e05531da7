"""From the fields of a request to the wish that the engine knows, for text that is gone on from and text that is translated."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from polyhead.errors import UserError, show
from polyhead.generate.service import Asked, TextEngine
from polyhead.registry import Choice
from polyhead.serve.bodies import Drawing
from polyhead.serve.refusal import Refusal, invalid
from polyhead.serve.service import Service
from polyhead.text.glossary import Glossary
from polyhead.text.sides import between

SAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "beam_size",
    "length_penalty",
)
SENT = ("frequency_penalty", "presence_penalty", "logit_bias")
"""What clients send though they wish nothing by it, as some do 0 with beams: no wish where it is so already."""
# names in a message
OTHERWISE = {"min_new_tokens": "min_tokens", "max_new_tokens": "max_tokens", "n_best": "n"}


def asked(service: Service, body: Drawing, texts: Sequence[str | list[int]], **others: Any) -> list[Asked]:
    """The texts of a request, read; a Refusal says which wish cannot be met. ``others`` are wishes that a body does not name."""
    engine, given = service.engine, body.model_fields_set
    assert engine is not None
    wishes: dict[str, Any] = {name: getattr(body, name) for name in SAME if name in given}
    for name in SENT:
        if name in given and getattr(body, name) != getattr(engine.config, name):
            wishes[name] = getattr(body, name)
    if wishes.get("beam_size") and wishes.get("temperature") == 0:  # beams draw nothing as it is
        del wishes["temperature"]
    if "min_tokens" in given:
        wishes["min_new_tokens"] = body.min_tokens
    wishes |= {"n": body.n, "stop": body.stop, **formed(body, engine), **others}
    if "terms" in others:
        try:
            wishes["terms"] = Glossary(others["terms"], engine.tokenizer.target)
        except UserError as error:
            raise _named(str(error), body) from None
    found = []
    for text in texts:
        if not isinstance(text, str):
            check_ids(service, text, "prompt")
        ids = engine.tokens(text) if isinstance(text, str) else text
        seed = body.seed if "seed" in given else 0 if service.deterministic else secrets.randbelow(2**31)
        try:
            ids, longest = (_continued if engine.frame else _translated)(service, engine, body, ids, others)
            found.append(engine.read(ids, seed=seed, **wishes, **longest))
        except UserError as error:
            raise _named(str(error), body) from None
        if "terms" in others and (width := found[-1].search.width) > service.limits.beams:
            raise invalid(
                "terms",
                f"terms: with those of a text there are {width} hypotheses, one more for each of their tokens; this service "
                f"keeps {service.limits.beams}",
            )
    return found


def formed(body: Drawing, engine: TextEngine) -> dict[str, Choice | None]:
    """The form that an output is asked to have, if there is one; any text puts off that of the run."""
    found = []
    wanted, structure = body.response_format, body.structured_outputs
    if wanted is not None and wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise invalid("response_format", "response_format: json_schema is missing")
        found.append(Choice("json", schema=wanted.json_schema.schema_))
    elif wanted is not None and wanted.type == "json_object":
        found.append(Choice("json"))
    if structure is not None:
        options = {"regex": "pattern", "choice": "among", "json": "schema"}
        given = structure.model_dump(by_alias=True, exclude_none=True)
        found += [Choice(name, **{options[name]: value}) for name, value in given.items()]
        if not given:
            raise invalid("structured_outputs", f"structured_outputs has none of {', '.join(options)}")
    if len(found) > 1:
        raise invalid(
            "structured_outputs",
            "an output has one form: response_format and structured_outputs name several",
        )
    if found:
        return {"form": found[0]}
    return {"form": None} if wanted is not None and engine.config.form else {}


def check_ids(service: Service, ids: Sequence[int], field: str) -> None:
    """Refuse numbers that are no tokens."""
    most = service.run.tokenizer.vocab_size - 1
    for token in ids:
        if not 0 <= token <= most:
            raise invalid(field, f"{field}: there is no token {show(token)}; this model knows 0 to {most}")


def _continued(
    service: Service, engine: TextEngine, body: Drawing, ids: list[int], others: dict[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """A prompt as it fits, and how long its continuation may be: nothing is shortened that was asked for.

    A conversation has been ``fitted``, message by message, and nothing more of it is cut.
    """
    most, given, fitted = engine.max_len, "max_tokens" in body.model_fields_set, "turn_ends" in others
    usual, least = usual_length(service, engine), max(1, body.max_tokens)  # one is drawn where any is
    if body.truncate:
        wanted = least if given else min(usual, max(most // 2, most - len(ids) + 1))
        beams = "beam_size" in body.model_fields_set
        if beams and fitted:
            wanted = min(wanted, most - len(ids) + 1)
        # drawn text that outgrows the model forgets its beginning; beams end where the model's reach does
        room = most - wanted + 1 if beams else most
        if room > 0:
            return ids[-room:], {"max_new_tokens": wanted}
    if len(ids) + least - 1 > most:
        and_new = f" and {least} new ones are wanted" if given and body.max_tokens else ""
        cut = "" if body.truncate else ", or send truncate=true to go on from the end of what fits"
        raise Refusal(
            400, "context_length_exceeded",
            f"the prompt has {len(ids)} tokens{and_new}; this model reads {most} at once: ask for less{cut}", "prompt",
        )  # fmt: skip
    return ids, {"max_new_tokens": least if given else min(usual, most - len(ids) + 1)}


def usual_length(service: Service, engine: TextEngine) -> int:
    """Tokens that are said at most where a request does not say how many."""
    return min(engine.config.max_new_tokens, service.limits.max_tokens)


def _translated(
    service: Service, engine: TextEngine, body: Drawing, ids: list[int], languages: dict[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """A source as it fits, and how long its translation may be."""
    sides = between(engine.tokenizer, languages.get("source_lang"), languages.get("target_lang"))
    room = engine.max_len - len(sides.source(()))
    if len(ids) > room:
        if not body.truncate:
            raise Refusal(
                400, "context_length_exceeded",
                f"the text has {len(ids)} tokens; this model reads {room}: split it, or send truncate=true to translate its beginning", "input",
            )  # fmt: skip
        ids = ids[:room]
    if "max_tokens" not in body.model_fields_set:
        return ids, {}
    if body.max_tokens > engine.max_len:
        raise Refusal(
            400,
            "context_length_exceeded",
            f"max_tokens is {body.max_tokens}; this model says {engine.max_len} at most",
            "max_tokens",
        )
    return ids, {"max_length_ratio": 0.0, "max_length_extra": body.max_tokens}


def _named(message: str, body: Drawing) -> Refusal:
    """An error of the engine in the words of a request, with the field that it names first."""
    message = message.partition("; these have:")[0]
    for ours, theirs in OTHERWISE.items():
        message = message.replace(ours, theirs)
    first = message.partition(" ")[0].rstrip(":")
    if first == "form":
        first = "structured_outputs" if body.structured_outputs else "response_format"
    return invalid(first if first in type(body).model_fields else None, message)
