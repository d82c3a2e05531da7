import gc
import json
import re
import sys
import weakref

import numpy as np
import pytest
import regex
import torch
from tests.grammar.grammar_helpers import (
    LINES,
    PERSON,
    TOKENIZERS,
    build_constraint,
    draw_text,
    draw_with_masks,
    load_tokenizer,
)

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.core.registry import GRAMMAR
from polyhead.generation.settings import with_overrides
from polyhead.grammar import grammar_constraint
from polyhead.grammar.grammar_constraint import GrammarConstraint, constraint_for
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PATTERNS = ["[0-9]{4}-[0-9]{2}", "(two|2) cats?( and a dog)*", "[狗猫é]+!?|a?", "a{2,5}[^a-z]", r"\d+\.\d*"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_allowed_tokens_begin_a_match(kind, pattern):
    tokenizer, reference = load_tokenizer(kind), regex.compile(pattern)
    constraint = build_constraint(kind, "regex", pattern=pattern)
    special, vocabulary = set(tokenizer.special_ids), range(tokenizer.vocab_size)
    (prefix,) = tokenizer.encode(["dog"])
    (prefix_text,) = tokenizer.decode([prefix])

    def decode(rows):
        texts = tokenizer.decode([[*prefix, *row] for row in rows])
        return [text.removeprefix(prefix_text) for text in texts]

    for seed in range(2):
        ids, masks = draw_with_masks(constraint, tokenizer, seed)
        for n, mask in enumerate(masks):
            text, *next_texts = decode([ids[:n], *([*ids[:n], i] for i in vocabulary)])
            if "\ufffd" in text:
                continue  # a part of a character
            assert mask[tokenizer.eos_id] == bool(reference.fullmatch(text))
            assert not mask[list(special - {tokenizer.eos_id})].any()
            for i in set(vocabulary) - special:
                if "\ufffd" in next_texts[i] or len(next_texts[i]) == len(text):
                    continue
                is_allowed = bool(reference.fullmatch(next_texts[i], partial=True))
                assert is_allowed or not mask[i], (text, next_texts[i])
                # where the grammar leaves no choice, one way to write it is enough
                assert mask[i] or not is_allowed or mask.sum() == 1, (text, next_texts[i])
        assert reference.fullmatch(decode([ids])[0])


def test_stop_tokens_and_masks_of_logits():
    tokenizer = load_tokenizer("bpe")
    (dot,), (a,) = tokenizer.encode([".", "a"])
    stop_ids = [tokenizer.eos_id, dot]
    constraint = build_constraint("bpe", "regex", *stop_ids, pattern="a[0-9]?")
    assert (
        not constraint.allowed_tokens([])[stop_ids].any() and constraint.allowed_tokens([a])[stop_ids].all()
    )
    constraint = build_constraint("bpe", "regex", dot, pattern="a[0-9]?")
    assert constraint.allowed_tokens([a])[dot] and not constraint.allowed_tokens([a])[tokenizer.eos_id]
    constraint = build_constraint("bpe", "regex", *stop_ids, pattern="a.[0-9]")  # a stop token ends, only
    assert not constraint.allowed_tokens([a])[stop_ids].any()
    tokenizer, constraint = load_tokenizer("char"), build_constraint("char", "regex", pattern="a[Ж]?c")
    a, c = tokenizer.token_to_id("a"), tokenizer.token_to_id("c")
    logits = torch.randn(3, tokenizer.vocab_size + 8)
    masked_logits = constraint.mask_logits(logits, [[], [a], [a, c]])
    allowed_ids = [row.isfinite().nonzero()[:, 0].tolist() for row in masked_logits]
    assert allowed_ids == [[a], [c], [tokenizer.eos_id]]
    assert torch.equal(masked_logits[0, a], logits[0, a])
    # no token writes Ж: such a row allows nothing
    masked_logits = build_constraint("char", "regex", pattern="aЖ").mask_logits(logits[:2], [[], [a]])
    assert masked_logits[0].isfinite().sum() == 1 and masked_logits[1].isneginf().all()


def test_allowed_tokens_depend_on_the_text_alone(monkeypatch):
    """In any order of texts, with or without cached states."""
    tokenizer, constraint = load_tokenizer("bpe"), build_constraint("bpe", "json", schema=PERSON)
    texts = [draw_text(constraint, tokenizer, seed) for seed in range(3)]
    prefixes = [text[:n] for text in texts for n in range(len(text) + 1)]
    expected = [constraint.allowed_tokens(prefix) for prefix in prefixes]
    monkeypatch.setattr(grammar_constraint, "_MAX_STATES", 2)
    grammar = GRAMMAR.build(GRAMMAR.check(Choice("json", schema=PERSON)))
    fresh = GrammarConstraint(grammar, constraint._vocabulary, [tokenizer.eos_id])
    for i in np.random.default_rng(1).permutation(len(prefixes)):
        assert (fresh.allowed_tokens(prefixes[i]) == expected[i]).all() and len(fresh._states) <= 2


def test_constraints_are_cached_and_need_the_library(monkeypatch):
    tokenizer = train_tokenizer(LINES, Choice("bpe"), 400)
    first = constraint_for(Choice("regex", pattern="a+"), tokenizer, [2])
    assert first is constraint_for(Choice("regex", pattern="a+"), tokenizer, [2])
    assert first is not constraint_for(Choice("regex", pattern="a+"), tokenizer, [2, 3])
    assert constraint_for(None, tokenizer, [2]) is None
    reference = weakref.ref(tokenizer)
    del tokenizer, first
    gc.collect()
    assert reference() is None
    monkeypatch.setitem(sys.modules, "llguidance", None)
    message = re.escape(f"a grammar needs llguidance: {install_command('grammar')}")
    with pytest.raises(UserError, match=message):
        constraint_for(Choice("regex", pattern="a"), load_tokenizer("bpe"), [2])


def test_too_large_grammar_is_refused():
    """With the limit of the library some take seconds a token, while all others wait."""
    texts = [f"answer {n}" for n in range(60_000)]
    with pytest.raises(UserError, match=r"grammar 'choice': initial lexer configuration .grammar. too big"):
        build_constraint("byte", "choice", choices=texts)
    a = load_tokenizer("byte").token_to_id("a")
    for pattern in ("(a{50}){20}", "[a-z]{1,2000}", "|".join(texts[:20_000])):
        assert build_constraint("byte", "regex", pattern=pattern).allowed_tokens([])[a]


def test_schema_file_is_read_once_into_the_config(tmp_path):
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    config = GenerationConfig.model_validate({"grammar": {"name": "json", "schema": str(path)}})
    path.unlink()
    grammar = json.loads(config.model_dump_json())["grammar"]
    assert grammar == {"name": "json", "schema": PERSON}
    assert GenerationConfig.model_validate({"grammar": grammar}) == config
    path.write_text("{")
    with pytest.raises(UserError, match=r"person.json is not valid JSON: Expecting"):
        with_overrides(config, {"grammar": {"name": "json", "schema": str(path)}}, "sampled text")
