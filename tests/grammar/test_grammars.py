"""Tests of grammar/grammars.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.grammar.grammar_constraint_helpers import PERSON, made, trained, walk

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.grammar.grammar_constraint import constraint_for

KINDS = ("bpe", "unigram", "wordpiece", "char", "byte")


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_as_its_schema_says(kind: str) -> None:
    tokenizer, form, seen = trained(kind), made(kind, "json", schema=PERSON), set()
    for seed in range(12):
        said, _ = walk(form, tokenizer, seed)
        found = json.loads(tokenizer.decode([said])[0])
        assert list(found) == list(PERSON["properties"])  # type: ignore[call-overload]
        assert isinstance(found["name"], str) and len(found["name"]) <= 4
        assert type(found["age"]) is int and 0 <= found["age"] <= 150
        assert 1 <= len(found["tags"]) <= 3 and set(found["tags"]) <= {"cat", "dog", 2}
        assert found["who"] in (None, True, False)
        seen.add(json.dumps(found))
    assert len(seen) > 6


def test_any_object_is_json_where_no_schema_is_given() -> None:
    tokenizer, form = trained("bpe"), made("bpe", "json")
    (wanted,) = tokenizer.encode(['{"a": [1, {"b": null}], "c": "狗 \\" x"}'])
    for at, token in enumerate(wanted):
        assert form.allowed_tokens(wanted[:at])[token], tokenizer.ids_to_tokens(wanted[: at + 1])
    assert (
        form.allowed_tokens(wanted)[tokenizer.eos_id]
        and not form.allowed_tokens(wanted[:-1])[tokenizer.eos_id]
    )
    for other in ("[", "1", '"', "a", "}"):
        assert not form.allowed_tokens([])[tokenizer.encode([other])[0][0]]


AMONG = ["two (2) cats", "two dogs", "a+b?", "狗", "[1]"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_is_one_of_its_texts_and_each_may_come(kind: str) -> None:
    tokenizer = trained(kind)
    among = [text for text in AMONG if tokenizer.decode(tokenizer.encode([text])) == [text]]
    form = made(kind, "choice", choices=among)
    found = {tokenizer.decode([walk(form, tokenizer, seed)[0]])[0] for seed in range(80)}
    assert found == set(among)
    assert len(among) > 2


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("regex", pattern="[a-"), "grammar 'regex': unclosed character class"),
        (Choice("regex", pattern="(?=a)b"), "grammar 'regex': look-around, including look-ahead and "
                                            "look-behind, is not supported"),
        (Choice("regex"), "grammar 'regex' requires the option 'pattern'"),
        (Choice("regexp", pattern="a"), "unknown grammar 'regexp'; did you mean 'regex'?"),
        (Choice("choice", choices=[]), "grammar 'choice': choices is [], expected texts, none of them empty"),
        (Choice("choice", choices=["a", ""]), "grammar 'choice': choices is ['a', ''], expected texts, none "
                                              "of them empty"),
        (Choice("json", schema={"type": "objekt"}), "grammar 'json': invalid type: objekt"),
        (Choice("json", schema={"not": {}}), "grammar 'json': unimplemented keys: [\"not\"]"),
        (Choice("json", schema="nowhere.json"), "nowhere.json: No such file or directory"),
        (Choice("json", schema=[1]), "schema of grammar 'json'"),
        (Choice("json", schema={"const": float("nan")}), "grammar 'json': Out of range float values are not "
            "JSON compliant"),
        (Choice("json", schema={"const": b"hi"}), "grammar 'json': Object of type bytes is not JSON "
            "serializable"),
        (Choice("json", schema={"const": 10**400}), "grammar 'json': number out of range"),
        (Choice("json", schema=nested(400)), "grammar 'json': recursion limit exceeded"),
        (Choice("json", schema=nested(100_000)), "grammar 'json': maximum recursion depth exceeded"),
        (Choice("json", schema={"const": "\ud800"}), "grammar 'json': half of a surrogate pair is not valid "
            "Unicode"),
        (Choice("grammar", lark="start: x"), "grammar 'grammar': at 1(8): unknown name: \"x\""),
        (Choice("grammar", lark='start: %json {"not": {}}'), "grammar 'grammar': "),
        (Choice("grammar", lark="start: \"\ud800\""), "grammar 'grammar': half of a surrogate pair is not "
            "valid Unicode"),
        (Choice("regex", pattern="a\ud800"),
            "grammar 'regex': half of a surrogate pair is not valid Unicode"),
        (Choice("choice", choices=["a", "\ud800"]), "grammar 'choice': half of a surrogate pair is not "
            "valid Unicode"),
    ],
)  # fmt: skip
def test_what_is_no_form_is_told_in_a_line(choice: Choice, message: str) -> None:
    with pytest.raises(UserError) as refused:
        constraint_for(choice, trained("bpe"), [2])
    assert message in str(refused.value) and "\n" not in str(refused.value)
