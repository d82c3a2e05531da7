"""What may come next, against partial matches of another engine of regular expressions and JSON read by
Python.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import regex
import torch
from tests.grammar.grammar_constraint_helpers import LINES, PERSON, made, trained, walk

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.core.registry import GRAMMAR
from polyhead.generation.settings import with_overrides
from polyhead.grammar import grammar_constraint as forms
from polyhead.grammar.grammar_constraint import GrammarConstraint, constraint_for
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS = ("bpe", "unigram", "wordpiece", "char", "byte")
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


def test_a_grammar_that_is_too_large_is_refused() -> None:
    """With the limit of the library some take seconds a token, while all others wait."""
    texts = [f"answer {n}" for n in range(60_000)]
    with pytest.raises(UserError, match=r"grammar 'choice': initial lexer configuration .grammar. too big"):
        made("byte", "choice", choices=texts)
    a = trained("byte").token_to_id("a")
    for pattern in ("(a{50}){20}", "[a-z]{1,2000}", "|".join(texts[:20_000])):
        assert made("byte", "regex", pattern=pattern).allowed_tokens([])[a]


def test_a_schema_is_read_where_it_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    config = GenerationConfig.model_validate({"grammar": {"name": "json", "schema": str(path)}})
    path.unlink()
    kept = json.loads(config.model_dump_json())["grammar"]
    assert kept == {"name": "json", "schema": PERSON}
    assert GenerationConfig.model_validate({"grammar": kept}) == config
    path.write_text("{")
    with pytest.raises(UserError, match=r"person.json is not valid JSON: Expecting"):
        with_overrides(config, {"grammar": {"name": "json", "schema": str(path)}}, "sampled text")


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        UserError, match=re.escape(f"a grammar needs llguidance: {install_command('grammar')}")
    ):
        constraint_for(Choice("regex", pattern="a"), trained("bpe"), [2])
    assert GRAMMAR.names()
