"""Shared by the tests of grammar_constraint."""

from __future__ import annotations

import string
from functools import cache
from typing import Any

import numpy as np

from polyhead.core.choice import Choice
from polyhead.grammar.grammar_constraint import GrammarConstraint, constraint_for
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = [
    '{"name": "Ann", "age": 33} 0123456789 -two (2) cats and a dog, 狗 and 猫, é?! [1] true false null :.'
] * 30

LINES += [string.printable]


@cache
def trained(kind: str) -> Tokenizer:
    return train_tokenizer(LINES, Choice(kind), 420)


def made(kind: str, name: str, *ends: int, **options: Any) -> GrammarConstraint:
    tokenizer = trained(kind)
    found = constraint_for(Choice(name, **options), tokenizer, ends or [tokenizer.eos_id])
    assert found is not None
    return found


def walk(
    form: GrammarConstraint, tokenizer: Tokenizer, seed: int, most: int = 400
) -> tuple[list[int], list[np.ndarray]]:
    """A text drawn from what may come, each token as likely as another, and what might have come at each
    place.
    """
    draw, said, masks = np.random.default_rng(seed), list[int](), []
    for _ in range(most):
        masks.append(form.allowed_tokens(said))
        token = int(draw.choice(np.flatnonzero(masks[-1])))
        if token == tokenizer.eos_id:
            return said, masks
        said.append(token)
    raise AssertionError("no end")


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["cat", "dog", 2]}, "minItems": 1, "maxItems": 3},
        "who": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "who"],
    "additionalProperties": False,
}
