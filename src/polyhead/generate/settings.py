"""Which settings of generation have an effect on what, and a config with changes of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from polyhead.elsewhere import keys_of, told
from polyhead.errors import UserError, check_whole, explain, nearest
from polyhead.generate.sampling import Sampling
from polyhead.generation_section import EFFECTIVE, GenerationConfig
from polyhead.text.tokenizer import Tokenizer

KNOWN = frozenset(GenerationConfig.model_fields) | {"seed"}
BESIDE = {
    "drawn text": frozenset(["n", "seed", "stop", "beam_size"]),  # with which it is drawn no more
    "the likeliest texts": frozenset(["n", "stop"]),
    "translations": frozenset(["source_lang", "target_lang", "prefix", "truncate", "shortlist", "terms"]),
    "drawn translations": frozenset(["n_best", "seed", "source_lang", "target_lang", "prefix", "truncate"]),
}
"""What else says how it is made, and is no key of generation."""
MOST_DRAWN = 10_000  # sequences of one prompt, which go on together


def changed(config: GenerationConfig, changes: dict[str, Any], what: str) -> GenerationConfig:
    """The config with changes, all of which must have an effect on ``what`` is made."""
    for name in sorted(KNOWN & set(changes) - EFFECTIVE[what]):
        effective = ", ".join(sorted(EFFECTIVE[what]))
        raise UserError(f"{name} has no effect on {what}; these have: {effective}")
    for name in sorted(set(changes) - KNOWN):
        beside = BESIDE.get(what, frozenset())
        if name in beside:
            raise UserError(
                f"{name} is for a list of texts, as run.translate takes it; a request is of one text alone"
            )
        able = EFFECTIVE[what] | beside
        words = {key: key.rpartition(".")[2] for key in keys_of(name)}
        words = {key: "n" if word == "n_best" and "n" in able else word for key, word in words.items()}
        meant = [key for key, word in words.items() if word in able]
        hint = told({key: words[key] for key in meant[:1]}) or nearest(name, sorted(able))
        raise UserError(f"{name}: unknown key{hint or '; known: ' + ', '.join(sorted(able))}")
    try:
        return GenerationConfig.model_validate(config.model_dump() | changes)
    except ValidationError as error:
        raise explain(error, GenerationConfig) from None


def sampled(config: GenerationConfig, changes: dict[str, Any], n: int, what: str) -> GenerationConfig:
    """``changed``, where ``n`` sequences of one prompt shall be drawn: no more than can go on together."""
    _check_number(changes, n)
    if n > MOST_DRAWN:
        raise UserError(
            f"n is {n:,}, wanted {MOST_DRAWN:,} at most; for more of them ask again with another seed"
        )
    return changed(config, changes, what)


def searched(config: GenerationConfig, changes: dict[str, Any], n: int, what: str) -> GenerationConfig:
    """``changed``, where beams shall find ``n`` texts: no more than they are."""
    _check_number(changes, n)
    beams = changed(config, changes | {"n_best": 1}, what).beam_size
    if n > beams:
        raise UserError(f"n ({n}) is more than beam_size ({beams})")
    return changed(config, changes | {"n_best": n}, what)


def _check_number(changes: dict[str, Any], n: int) -> None:
    """A UserError where the number of texts is told by another name, or is none."""
    if "n_best" in changes:
        raise UserError("n says how many texts there are, not n_best")
    check_whole("n", n)


def ends_of(config: GenerationConfig, tokenizer: Tokenizer, *own: int) -> tuple[int, ...]:
    """The tokens of which any ends an output: its ``own``, that of the tokenizer if none are given, and the config's."""
    named = [tokenizer.id_of(token) for token in config.ends]
    return tuple(dict.fromkeys([*(own or [tokenizer.eos_id]), *named]))


def sampling_of(config: GenerationConfig, vocab_size: int) -> Sampling:
    """How a config wants tokens to be drawn, of so many that there are."""
    bias = tuple(sorted(config.logit_bias.items()))
    if bias and bias[-1][0] >= vocab_size:
        raise UserError(f"logit_bias names token {bias[-1][0]}; this model knows 0 to {vocab_size - 1}")
    given = {field.name: getattr(config, field.name) for field in fields(Sampling)}
    return Sampling(**given | {"logit_bias": bias})
