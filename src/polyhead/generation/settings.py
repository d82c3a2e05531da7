"""Check which generation settings have an effect, and override settings of a config."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from polyhead.config.generation_config import EFFECTIVE_KEYS, RELATED_KEYS, GenerationConfig
from polyhead.core.errors import UserError, check_int, did_you_mean
from polyhead.core.key_aliases import aliased_keys, hint_text
from polyhead.core.messages import from_validation_error
from polyhead.generation.decoding.sampling import Sampling
from polyhead.tokenizers.tokenizer import Tokenizer

_KNOWN_KEYS = frozenset(GenerationConfig.model_fields) | {"seed"}
_REQUEST_KEYS = {
    "sampled text": frozenset(["n", "seed", "stop", "beam_size"]),  # with beam_size it is not sampled
    "beam search": frozenset(["n", "stop"]),
    "translations": frozenset(
        ["source_lang", "target_lang", "prefix", "truncate", "shortlist", "terminology"]
    ),
    "sampled translations": frozenset(["n_best", "seed", "source_lang", "target_lang", "prefix", "truncate"]),
}
"""Options of a request that are not generation settings, by kind of output."""
_REQUEST_NAMES = {"n_best": "n", "stop_strings": "stop"}
"""Keys of recipes and of other toolkits -> the option of a request with that meaning."""
MAX_SEQUENCES = 10_000  # sequences of one prompt, which run together


def with_overrides(config: GenerationConfig, overrides: dict[str, Any], output_kind: str) -> GenerationConfig:
    """The config with overrides, all of which must have an effect on ``output_kind``."""
    for name in sorted(_KNOWN_KEYS & set(overrides) - EFFECTIVE_KEYS[output_kind]):
        effective = ", ".join(sorted(EFFECTIVE_KEYS[output_kind]))
        raise UserError(f"{name} has no effect on {output_kind}; valid settings: {effective}")
    for name in sorted(set(overrides) - _KNOWN_KEYS):
        request_keys = _REQUEST_KEYS.get(output_kind, frozenset())
        if name in request_keys:
            raise UserError(f"{name} is for lists of texts, as in run.translate; a request has one text")
        effective_keys = EFFECTIVE_KEYS[output_kind] | request_keys
        words = {key: key.rpartition(".")[2] for key in [*aliased_keys(name), name]}
        words |= {
            key: _REQUEST_NAMES[word]
            for key, word in words.items()
            if _REQUEST_NAMES.get(word) in effective_keys
        }
        matches = [key for key, word in words.items() if word in effective_keys]
        hint = hint_text({key: words[key] for key in matches[:1]}) or did_you_mean(
            name, sorted(effective_keys)
        )
        raise UserError(f"{name}: unknown key{hint or '; known: ' + ', '.join(sorted(effective_keys))}")
    related = {key: getattr(config, key) for key in RELATED_KEYS}  # others of the config are checked already
    try:
        changed = GenerationConfig.model_validate(related | overrides)
    except ValidationError as error:
        raise from_validation_error(error, GenerationConfig) from None
    return config.model_copy(update={key: getattr(changed, key) for key in overrides})


def sampling_config(
    config: GenerationConfig, overrides: dict[str, Any], n: int, output_kind: str
) -> GenerationConfig:
    """``with_overrides`` for ``n`` sampled sequences of one prompt; a UserError above ``MAX_SEQUENCES``."""
    _check_number(overrides, n)
    if n > MAX_SEQUENCES:
        raise UserError(
            f"n is {n:,}, expected at most {MAX_SEQUENCES:,}; for more repeat the request with another seed"
        )
    return with_overrides(config, overrides, output_kind)


def beam_config(
    config: GenerationConfig, overrides: dict[str, Any], n: int, output_kind: str
) -> GenerationConfig:
    """``with_overrides`` for the ``n`` best texts of beam search; a UserError above ``beam_size``."""
    _check_number(overrides, n)
    beams = with_overrides(config, overrides | {"n_best": 1}, output_kind).beam_size
    if n > beams:
        raise UserError(f"n ({n}) is more than beam_size ({beams})")
    return with_overrides(config, overrides | {"n_best": n}, output_kind)


def _check_number(overrides: dict[str, Any], n: int) -> None:
    """A UserError if the number of texts is given as ``n_best``, or is no integer."""
    if "n_best" in overrides:
        raise UserError("n sets the number of texts, not n_best")
    check_int("n", n, 1)


def eos_ids_for(config: GenerationConfig, tokenizer: Tokenizer, *own_ids: int) -> tuple[int, ...]:
    """The end tokens of an output: ``own_ids``, by default the tokenizer's end, and those of the config."""
    config_ids = [tokenizer.token_to_id(token) for token in config.stop_tokens]
    return tuple(dict.fromkeys([*(own_ids or [tokenizer.eos_id]), *config_ids]))


def sampling_from_config(config: GenerationConfig, vocab_size: int) -> Sampling:
    """The sampling settings of a config, for a vocabulary of ``vocab_size`` tokens."""
    bias = tuple(sorted(config.logit_bias.items()))
    if bias and bias[-1][0] >= vocab_size:
        raise UserError(f"logit_bias has token {bias[-1][0]}; the vocabulary has 0 to {vocab_size - 1}")
    settings = {field.name: getattr(config, field.name) for field in fields(Sampling)}
    return Sampling(**settings | {"logit_bias": bias})
