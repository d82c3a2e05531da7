"""generation_config.json of transformers, both ways: how outputs are searched for or drawn, if nobody says otherwise."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polyhead.config import ModelConfig
from polyhead.errors import UserError, explain, show
from polyhead.generation_section import BIAS, GenerationConfig
from polyhead.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# settings of theirs that change what is said and have none of ours: of any decoder, of translations, of other texts
UNHEARD = (
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "forced_decoder_ids", "stop_strings",
    "encoder_repetition_penalty", "exponential_decay_length_penalty", "guidance_scale", "num_beam_groups", "penalty_alpha",
)  # fmt: skip
SEARCHED_THERE = (*UNHEARD, "do_sample", "repetition_penalty", "encoder_no_repeat_ngram_size")
DRAWN_THERE = (
    *UNHEARD, "num_beams", "max_length", "min_length", "min_new_tokens", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h",
    "forced_eos_token_id",
)  # fmt: skip
# settings that change what a language model says and that transformers has no words for
UNSAID = ("frequency_penalty", "presence_penalty", "form")


def searching(given: Mapping[str, Any], tokenizer: Tokenizer, where: Path) -> GenerationConfig:
    """How translations are searched for, in our words. Their lengths count the start of an output as well."""
    counts = {
        key: value for key, value in given.items() if isinstance(value, int) and not isinstance(value, bool)
    }
    values: dict[str, Any] = {
        "beam_size": counts.get("num_beams", 1),
        "n_best": counts.get("num_return_sequences", 1),
    }
    values |= {key: given[key] for key in ("length_penalty", "early_stopping") if given.get(key) is not None}
    if most := counts.get("max_new_tokens", counts.get("max_length", 1) - 1):
        values |= {"max_length_ratio": 0, "max_length_extra": most}
    values["min_new_tokens"] = max(0, counts.get("min_new_tokens", counts.get("min_length", 1) - 1))
    bad = given.get("bad_words_ids") or []
    if not isinstance(bad, list) or not all(isinstance(ids, list) for ids in bad):
        raise UserError(f"{where}: bad_words_ids is {show(bad)}, wanted lists of ids of tokens")
    never = [ids[0] for ids in bad if len(ids) == 1]
    values["forbidden"] = tokenizer.tokens([i for i in never if i in range(tokenizer.vocab_size)])
    values["no_repeat_ngram_size"] = counts.get("no_repeat_ngram_size", 0)
    several = {"bad_words_ids": [ids for ids in bad if len(ids) > 1]}
    _unheard({**given, **several}, SEARCHED_THERE, where, "translations are searched for")
    try:
        return GenerationConfig.model_validate(values)
    except ValidationError as error:
        raise explain(error, GenerationConfig, str(where)) from None


def drawing(given: Mapping[str, Any], where: Path) -> GenerationConfig:
    """generation_config.json in our words: without do_sample the likeliest token is taken."""
    biases, unheard = _biases(given.get("sequence_bias"), where)
    longest = {} if given.get("max_new_tokens") is None else {"max_length": None}
    _unheard({**given, **longest, "sequence_bias": unheard}, DRAWN_THERE, where, "texts are continued")
    keys = (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "max_new_tokens",
    )
    values = {key: given[key] for key in keys if given.get(key) is not None}
    if not given.get("do_sample"):
        values = {key: values[key] for key in keys[4:] if key in values} | {"temperature": 0.0}
    values["logit_bias"] = biases
    try:
        return GenerationConfig.model_validate(({"top_k": 50} if given.get("do_sample") else {}) | values)
    except ValidationError as error:
        raise explain(error, GenerationConfig, str(where)) from None


def _biases(given: Any, where: Path) -> tuple[dict[int, float], list[Any]]:
    """What is added to the logits of single tokens, and the rest: of tokens that follow others, or beyond our range."""
    found: dict[int, float] = {}
    rest: list[Any] = []
    try:
        for ids, bias in given or []:
            if len(ids) == 1 and abs(bias) <= BIAS:
                found[ids[0]] = bias
            else:
                rest.append([ids, bias])
    except (TypeError, ValueError):
        raise UserError(
            f"{where}: sequence_bias is {show(given)}, wanted lists of ids of tokens, each with a number"
        ) from None
    return found, rest


def _unheard(given: Mapping[str, Any], keys: Iterable[str], where: Path, what: str) -> None:
    """Warn of settings that would change a text there and are not built here."""
    for key in keys:
        if given.get(key) not in (None, False, 0, 1, []):
            log.warning("%s: %s is %s, and %s without it", where, key, show(given[key]), what)


def decoding(config: ModelConfig, settings: GenerationConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json; temperature 0 is what they call not to sample. An encoder says nothing."""
    if config.kind == "encoder":
        return {}
    if config.kind == "encoder-decoder":
        return _searching(config, settings, tokenizer)
    left_out(settings, UNSAID, "generation_config.json")
    common: dict[str, Any] = {
        "repetition_penalty": settings.repetition_penalty,
        "max_new_tokens": settings.max_new_tokens,
    } | _ngram(settings)
    if settings.logit_bias:
        common["sequence_bias"] = [[[token], bias] for token, bias in settings.logit_bias.items()]
    if settings.temperature == 0:
        return common | {"do_sample": False}
    keys = ("temperature", "top_k", "top_p", "min_p")
    return common | {"do_sample": True} | {key: getattr(settings, key) for key in keys}


def left_out(settings: GenerationConfig, names: Sequence[str], where: str) -> None:
    """Warn of settings that a file of others has no words for, so that what reads it says other things."""
    given = settings.model_dump(exclude_defaults=True)
    if without := [f"generation.{name}" for name in names if name in given]:
        log.warning("%s has no words for %s; there texts are drawn without", where, ", ".join(without))


def _searching(config: ModelConfig, settings: GenerationConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Theirs has one greatest length for all sources, which counts the start of an output."""
    most = config.max_len if settings.max_length_ratio else min(config.max_len, settings.max_length_extra)
    found: dict[str, Any] = {
        "num_beams": settings.beam_size,
        "num_return_sequences": settings.n_best,
        "length_penalty": settings.length_penalty,
        "early_stopping": settings.early_stopping,
        "max_length": most + 1,
        "do_sample": False,
    } | _ngram(settings)
    if settings.min_new_tokens:
        found["min_length"] = settings.min_new_tokens + 1
    if settings.forbidden:
        found["bad_words_ids"] = [[tokenizer.id_of(token)] for token in settings.forbidden]
    return found


def _ngram(settings: GenerationConfig) -> dict[str, Any]:
    n = settings.no_repeat_ngram_size
    return {"no_repeat_ngram_size": n} if n else {}
