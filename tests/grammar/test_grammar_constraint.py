"""What may come next, against partial matches of another engine of regular expressions and JSON read by Python."""

from __future__ import annotations

import gc
import json
import re
import string
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import torch

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.core.registry import GRAMMAR
from polyhead.generation.settings import with_overrides
from polyhead.grammar import grammar_constraint as forms
from polyhead.grammar.grammar_constraint import GrammarConstraint, constraint_for
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS = ("bpe", "unigram", "wordpiece", "char", "byte")
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
    """A text drawn from what may come, each token as likely as another, and what might have come at each place."""
    draw, said, masks = np.random.default_rng(seed), list[int](), []
    for _ in range(most):
        masks.append(form.allowed_tokens(said))
        token = int(draw.choice(np.flatnonzero(masks[-1])))
        if token == tokenizer.eos_id:
            return said, masks
        said.append(token)
    raise AssertionError("no end")


PATTERNS = ["[0-9]{4}-[0-9]{2}", "(two|2) cats?( and a dog)*", "[狗猫é]+!?|a?", "a{2,5}[^a-z]", r"\d+\.\d*"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_may_come_where_some_match_begins_so(kind: str, pattern: str) -> None:
    tokenizer = trained(kind)
    form, wanted = made(kind, "regex", pattern=pattern), regex.compile(pattern)
    special, ids = set(tokenizer.special_ids), range(tokenizer.vocab_size)
    before = tokenizer.encode(["dog"])[0]
    (head,) = tokenizer.decode([before])
    for seed in range(4):
        said, masks = walk(form, tokenizer, seed)
        for at, mask in enumerate(masks):
            texts = [
                text.removeprefix(head) for text in tokenizer.decode([[*before, *said[:at], i] for i in ids])
            ]
            (text,) = tokenizer.decode([[*before, *said[:at]]])
            text = text.removeprefix(head)
            if "�" in text:
                continue  # part of a character
            assert mask[tokenizer.eos_id] == bool(wanted.fullmatch(text))
            for i in set(ids) - special:
                if "�" in texts[i] or len(texts[i]) == len(text):
                    continue
                could = bool(wanted.fullmatch(texts[i], partial=True))
                assert could or not mask[i], (text, texts[i])
                # where the form leaves no choice, one way to write it is enough
                assert mask[i] or not could or mask.sum() == 1, (text, texts[i])
            assert not mask[list(special - {tokenizer.eos_id})].any()
        assert wanted.fullmatch(tokenizer.decode([[*before, *said]])[0].removeprefix(head))


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


def test_every_token_that_ends_may_come_where_the_form_is_whole() -> None:
    tokenizer = trained("bpe")
    (dot,) = tokenizer.encode(["."])[0]
    ends = [tokenizer.eos_id, dot]
    (a,) = tokenizer.encode(["a"])[0]
    form = made("bpe", "regex", *ends, pattern="a[0-9]?")
    assert not form.allowed_tokens([])[ends].any() and form.allowed_tokens([a])[ends].all()
    form = made("bpe", "regex", dot, pattern="a[0-9]?")  # what else ends texts is no end of this one
    assert form.allowed_tokens([a])[dot] and not form.allowed_tokens([a])[tokenizer.eos_id]
    form = made("bpe", "regex", *ends, pattern="a.[0-9]")  # where it ends an output it is no part of one
    assert not form.allowed_tokens([a])[ends].any()


def test_what_may_come_depends_on_what_was_said_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts come and go in any order, remembered or not."""
    tokenizer, form = trained("bpe"), made("bpe", "json", schema=PERSON)
    texts = [walk(form, tokenizer, seed)[0] for seed in range(3)]
    parts = [text[:at] for text in texts for at in range(len(text) + 1)]
    wanted = [form.allowed_tokens(part) for part in parts]
    monkeypatch.setattr(forms, "_MAX_STATES", 2)
    fresh = GrammarConstraint(
        GRAMMAR.build(GRAMMAR.check(Choice("json", schema=PERSON))), form._vocabulary, [tokenizer.eos_id]
    )
    for i in np.random.default_rng(1).permutation(len(parts)):
        assert (fresh.allowed_tokens(parts[i]) == wanted[i]).all()
        assert len(fresh._states) <= 2


def test_logits_beyond_the_vocabulary_never_come_and_rows_without_a_token_are_empty() -> None:
    tokenizer = trained("char")
    form = made("char", "regex", pattern="a[Ж]?c")
    a = tokenizer.token_to_id("a")
    logits = torch.randn(3, tokenizer.vocab_size + 8)
    shaped = form.mask_logits(logits, [[], [a], [a, tokenizer.token_to_id("c")]])
    left = [row.isfinite().nonzero()[:, 0].tolist() for row in shaped]
    assert left == [[a], [tokenizer.token_to_id("c")], [tokenizer.eos_id]]
    assert torch.equal(shaped[0, a], logits[0, a])
    shaped = made("char", "regex", pattern="aЖ").mask_logits(logits[:2], [[], [a]])
    assert shaped[0].isfinite().sum() == 1 and shaped[1].isneginf().all()


def test_equal_choices_have_one_form_and_nothing_outlives_its_tokenizer() -> None:
    tokenizer = train_tokenizer(LINES, Choice("bpe"), 400)
    first = constraint_for(Choice("regex", pattern="a+"), tokenizer, [2])
    assert first is constraint_for(Choice("regex", pattern="a+"), tokenizer, [2])
    assert first is not constraint_for(Choice("regex", pattern="a+"), tokenizer, [2, 3])
    assert constraint_for(None, tokenizer, [2]) is None
    gone = weakref.ref(tokenizer)
    del tokenizer, first
    gc.collect()
    assert gone() is None


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("regex", pattern="[a-"), "form 'regex': unclosed character class"),
        (Choice("regex", pattern="(?=a)b"), "form 'regex': look-around, including look-ahead and look-behind, is not supported"),
        (Choice("regex"), "form 'regex' needs the option 'pattern'"),
        (Choice("regexp", pattern="a"), "unknown form 'regexp'; did you mean 'regex'?"),
        (Choice("choice", choices=[]), "form 'choice': choices is [], wanted texts, none of them empty"),
        (Choice("choice", choices=["a", ""]), "form 'choice': choices is ['a', ''], wanted texts, none of them empty"),
        (Choice("json", schema={"type": "objekt"}), "form 'json': invalid type: objekt"),
        (Choice("json", schema={"not": {}}), "form 'json': unimplemented keys: [\"not\"]"),
        (Choice("json", schema="nowhere.json"), "nowhere.json: No such file or directory"),
        (Choice("json", schema=[1]), "schema of form 'json'"),
        (Choice("json", schema={"const": float("nan")}), "form 'json': Out of range float values are not JSON compliant"),
        (Choice("json", schema={"const": b"hi"}), "form 'json': Object of type bytes is not JSON serializable"),
        (Choice("json", schema={"const": 10**400}), "form 'json': number out of range"),
        (Choice("json", schema=nested(400)), "form 'json': recursion limit exceeded"),
        (Choice("json", schema=nested(100_000)), "form 'json': maximum recursion depth exceeded"),
        (Choice("json", schema={"const": "\ud800"}), "form 'json': half of a surrogate pair is not Unicode text"),
        (Choice("grammar", lark="start: x"), "form 'grammar': at 1(8): unknown name: \"x\""),
        (Choice("grammar", lark='start: %json {"not": {}}'), "form 'grammar': "),
        (Choice("grammar", lark="start: \"\ud800\""), "form 'grammar': half of a surrogate pair is not Unicode text"),
        (Choice("regex", pattern="a\ud800"), "form 'regex': half of a surrogate pair is not Unicode text"),
        (Choice("choice", choices=["a", "\ud800"]), "form 'choice': half of a surrogate pair is not Unicode text"),
    ],
)  # fmt: skip
def test_what_is_no_form_is_told_in_a_line(choice: Choice, message: str) -> None:
    with pytest.raises(UserError) as refused:
        constraint_for(choice, trained("bpe"), [2])
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_grammar_that_is_too_large_is_refused() -> None:
    """With the limit of the library some take seconds a token, while all others wait."""
    texts = [f"answer {n}" for n in range(60_000)]
    with pytest.raises(UserError, match=r"form 'choice': initial lexer configuration .grammar. too big"):
        made("byte", "choice", choices=texts)
    a = trained("byte").token_to_id("a")
    for pattern in ("(a{50}){20}", "[a-z]{1,2000}", "|".join(texts[:20_000])):
        assert made("byte", "regex", pattern=pattern).allowed_tokens([])[a]


def test_a_schema_is_read_where_it_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    config = GenerationConfig.model_validate({"form": {"name": "json", "schema": str(path)}})
    path.unlink()
    kept = json.loads(config.model_dump_json())["form"]
    assert kept == {"name": "json", "schema": PERSON}
    assert GenerationConfig.model_validate({"form": kept}) == config
    path.write_text("{")
    with pytest.raises(UserError, match=r"person.json is no JSON: Expecting"):
        with_overrides(config, {"form": {"name": "json", "schema": str(path)}}, "drawn text")


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=re.escape(f"a form needs llguidance: {install_command('form')}")):
        constraint_for(Choice("regex", pattern="a"), trained("bpe"), [2])
    assert GRAMMAR.names()
