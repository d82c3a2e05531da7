import json
from pathlib import Path

import pytest
from tests.grammar.grammar_helpers import PERSON, TOKENIZERS, build_constraint, draw_text, load_tokenizer

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.grammar.grammar_constraint import constraint_for


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_json_and_choices_fit_their_grammar(kind):
    tokenizer, constraint = load_tokenizer(kind), build_constraint(kind, "json", schema=PERSON)
    texts = [tokenizer.decode([draw_text(constraint, tokenizer, seed)])[0] for seed in range(12)]
    for person in map(json.loads, texts):
        assert list(person) == ["name", "age", "tags", "who"]
        assert isinstance(person["name"], str) and len(person["name"]) <= 4
        assert type(person["age"]) is int and 0 <= person["age"] <= 150
        assert 1 <= len(person["tags"]) <= 3 and set(person["tags"]) <= {"cat", "dog", 2}
        assert person["who"] in (None, True, False)
    assert len(set(texts)) > 6
    choices = [text for text in texts if tokenizer.decode(tokenizer.encode([text])) == [text]]
    constraint = build_constraint(kind, "choice", choices=choices)
    drawn_texts = {tokenizer.decode([draw_text(constraint, tokenizer, seed)])[0] for seed in range(80)}
    assert drawn_texts == set(choices) and len(choices) > 2


def test_json_without_a_schema_is_any_object():
    tokenizer, constraint = load_tokenizer("bpe"), build_constraint("bpe", "json")
    (ids,) = tokenizer.encode(['{"a": [1, {"b": null}], "c": "狗 \\" x"}'])
    for n, token in enumerate(ids):
        allowed_ids = constraint.allowed_tokens(ids[:n])
        assert allowed_ids[token] and not allowed_ids[tokenizer.eos_id], tokenizer.ids_to_tokens(ids[: n + 1])
    assert constraint.allowed_tokens(ids)[tokenizer.eos_id]
    for text in ("[", "1", '"', "a", "}"):
        assert not constraint.allowed_tokens([])[tokenizer.encode([text])[0][0]]


def nested_schema(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


REFUSALS = map(json.loads, (Path(__file__).parent / "refused.jsonl").read_text().splitlines())


OPTIONS = ["grammar 'regex' requires the option 'pattern'", "unknown grammar 'regexp'; did you mean 'regex'?"]
OPTIONS += ["nowhere.json: No such file or directory", "schema of grammar 'json'"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *REFUSALS,
        ("json", {"schema": {"const": b"hi"}}, "Object of type bytes is not JSON serializable"),
        ("json", {"schema": {"const": 10**400}}, "number out of range"),
        ("json", {"schema": nested_schema(400)}, "recursion limit exceeded"),
        ("json", {"schema": nested_schema(100_000)}, "maximum recursion depth exceeded"),
    ],
)
@pytest.mark.whole
def test_invalid_grammar_is_refused_in_one_line(name, options, message):
    with pytest.raises(UserError) as error:
        constraint_for(Choice(name, **options), load_tokenizer("bpe"), [2])
    prefix = "" if message in OPTIONS else f"grammar '{name}': "
    assert prefix + message in str(error.value) and "\n" not in str(error.value)
