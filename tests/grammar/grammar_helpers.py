"""Tokenizers, constraints and random walks that the tests of grammars share."""

import string
from functools import cache

import numpy as np

from polyhead.core.choice import Choice
from polyhead.grammar.grammar_constraint import constraint_for
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TOKENIZERS = ("bpe", "unigram", "wordpiece", "char", "byte")
LINE = '{"name": "Ann", "age": 33} 0123456789 -two (2) cats and a dog, 狗 and 猫, é?! [1] true false null :.'
LINES = [LINE] * 30 + [string.printable]
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


@cache
def load_tokenizer(kind):
    return train_tokenizer(LINES, Choice(kind), 420)


def build_constraint(kind, name, *stop_ids, **options):
    tokenizer = load_tokenizer(kind)
    constraint = constraint_for(Choice(name, **options), tokenizer, stop_ids or [tokenizer.eos_id])
    assert constraint is not None
    return constraint


def draw_text(constraint, tokenizer, seed):
    return draw_with_masks(constraint, tokenizer, seed)[0]


def draw_with_masks(constraint, tokenizer, seed):
    rng, ids, masks = np.random.default_rng(seed), list[int](), []
    for _ in range(400):
        masks.append(constraint.allowed_tokens(ids))
        token = int(rng.choice(np.flatnonzero(masks[-1])))
        if token == tokenizer.eos_id:
            return ids, masks
        ids.append(token)
    raise AssertionError("the text does not end")
