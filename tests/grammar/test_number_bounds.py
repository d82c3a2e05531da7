import json
from itertools import pairwise

import pytest
from tests.grammar.grammar_helpers import load_tokenizer

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.grammar.grammar_constraint import constraint_for
from polyhead.grammar.number_bounds import tighten_bounds

PAIRS = [*pairwise([-10.5, -10, -9.75, -1, -0.5, 0, 0.05, 0.5, 1, 1.25, 100, 100.5, 2**24, 2**24 + 0.5])]
PAIRS += [*[(0, 1), (0, 1.5), (-0.5, 0.5), (-1.5, 0), (0.5, 1.5)]]


def is_writable(text, kind, **options):
    tokenizer = load_tokenizer("byte")
    constraint = constraint_for(Choice(kind, **options), tokenizer, [tokenizer.eos_id])
    assert constraint is not None
    (ids,) = tokenizer.encode([text])
    return all(constraint.allowed_tokens(ids[:i])[token] for i, token in enumerate(ids)) and bool(
        constraint.allowed_tokens(ids)[tokenizer.eos_id]
    )


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_exclusive_bounds_cannot_be_written(low, high):
    middle = str((low + high) / 2)
    for low_key, high_key in (
        ("exclusiveMinimum", "exclusiveMaximum"),
        ("exclusiveMinimum", "maximum"),
        ("minimum", "exclusiveMaximum"),
    ):
        schema = {"type": ["number", "null"], low_key: low, high_key: high}
        assert is_writable(middle, "json", schema=schema)
        for key, bound in ((low_key, low), (high_key, high)):
            texts = [str(bound), f"{bound}0" if "." in str(bound) else f"{bound}.0"]
            texts += ["-0", "-0.0", "0.00"] if bound == 0 else []
            if key.startswith("exclusive"):
                assert not [text for text in texts if is_writable(text, "json", schema=schema)], schema
            else:
                assert is_writable(texts[0], "json", schema=schema), schema


def test_nested_schemas_are_tightened():
    number = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    tight_number = {"type": "number", "minimum": 1e-9, "maximum": 0.5}
    schema = {"properties": {"default": number, "x": {"items": number}, "enum": {"enum": [number]}}}
    schema |= {"$defs": {"share": number}, "anyOf": [number, {"maximum": 0.25}]}
    expected = {
        "properties": {"default": tight_number, "x": {"items": tight_number}, "enum": {"enum": [number]}},
        "$defs": {"share": tight_number},
        "anyOf": [tight_number, {"maximum": 0.25}],
    }
    assert tighten_bounds(schema) == expected
    integer = {"type": "integer", "exclusiveMinimum": 0, "maximum": 10.5}
    assert tighten_bounds(integer) == integer
    schema = json.dumps({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5})
    lark = f'start: "a" x | "%json" x\nx: %json {schema}\n'
    assert is_writable("a0.5", "grammar", lark=lark) and is_writable("%json0.25", "grammar", lark=lark)
    assert not is_writable("a0", "grammar", lark=lark)


LOW, HIGH = {"type": "number", "exclusiveMinimum": 0}, {"type": "number", "maximum": 0.5}


SPLIT = "exclusiveMinimum: 0 and maximum: 0.5 of one number are in two schemas"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"allOf": [LOW, HIGH]}, SPLIT),
        ({**HIGH, "allOf": [LOW]}, SPLIT),
        ({**LOW, "anyOf": [HIGH, {"minimum": 2}]}, SPLIT),
        ({"$ref": "#/$defs/low", "maximum": 0.5, "$defs": {"low": LOW}}, SPLIT),
        ({"properties": {"x": {"allOf": [{"$ref": "#/$defs/low"}, HIGH]}}, "$defs": {"low": LOW}}, SPLIT),
        ({"exclusiveMinimum": 0, "maximum": 1e-10}, "exclusiveMinimum: 0 and maximum: 1e-10 leave no number"),
        ({"type": 3, "minimum": 10**400}, "grammar 'json'"),  # which the library refuses
    ],
)
def test_impossible_bounds_are_refused(schema, message):
    with pytest.raises(UserError, match=message):
        constraint_for(Choice("json", schema=schema), load_tokenizer("byte"), [2])
