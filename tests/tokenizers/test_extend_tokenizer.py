"""Grown vocabularies: old ids and old text stay, new tokens are those that plain pair merging finds."""

import json
import re
from collections import Counter
from itertools import pairwise

import pytest

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.tokenizers.extend_tokenizer import extend_tokenizer, find_new_tokens
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import models, pre_tokenizers

OLD = ["the king of the sea came back", "a dog barks at two red dogs", "kings and dogs went to the sea"] * 3
NEW = [
    "der König der Straßen kam zurück",
    "die Königin der Straße",
    "Königreich, größer: Straßen! zurück",
] * 3
KINDS = {"bpe": 330, "unigram": 120, "wordpiece": 190}


def old_tokenizer(kind):
    options = {"byte_fallback": True} if kind == "unigram" else {}
    size = KINDS[kind] + 256 * (kind == "unigram")
    texts = [*OLD, "äöüß KSzrtvwxyz,:!"]
    return train_tokenizer(texts, Choice(kind, **options), size, sentinels=2)


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    old = old_tokenizer(request.param)
    return old, extend_tokenizer(old, NEW, 25)


def test_old_ids_stay_and_new_ones_follow(pair):
    old, new = pair
    old_vocab, new_vocab = (json.loads(one.tokenizer_json) for one in pair)
    assert old.ids_to_tokens(range(old.max_id + 1)) == new.ids_to_tokens(range(old.max_id + 1))
    assert (new.max_id, new.vocab_size) == (old.max_id + 25, old.vocab_size + 25)
    assert old.role_ids == new.role_ids and old.special_ids == new.special_ids
    assert old_vocab["added_tokens"] == new_vocab["added_tokens"]


def test_texts_are_restored_with_fewer_tokens(pair):
    old, new = pair
    for text in [*OLD, *NEW, "<extra_id_0> </s> Königsstraße"]:
        (before,), (after,) = old.encode([text]), new.encode([text])
        assert new.decode([after]) == old.decode([before]) == [text]
        assert not {*after} & {*new.special_ids}
        assert len(after) <= len(before)
    assert sum(map(len, new.encode(NEW))) < 0.7 * sum(map(len, old.encode(NEW)))
    assert new.encode(OLD) == old.encode(OLD)


def test_new_tokens_are_split_into_their_old_ones(pair):
    old, new = pair
    new_tokens = find_new_tokens(*pair)
    assert [*new_tokens] == [*range(old.max_id + 1, new.max_id + 1)]
    for i, pieces in new_tokens.items():
        assert len(pieces) > 1 and max(pieces) <= old.max_id
        names = [name.removeprefix("##") for name in old.ids_to_tokens(pieces)]
        assert "".join(names) == new.ids_to_tokens([i])[0].removeprefix("##")
    old_rows = [[j for i in row for j in new_tokens.get(i, [i])] for row in new.encode(NEW)]
    assert old_rows == old.encode(NEW)


def merge_plainly(words, size):
    """The most frequent pair again and again, by counting all of them anew each time."""
    tokens = []
    while len(tokens) < size:
        pairs = Counter()
        for word, count in words.items():
            for two in pairwise(word):
                pairs[two] += count
        best = max(pairs.values())
        (two,) = [two for two in pairs if pairs[two] == best]
        tokens.append("".join(two))
        new_words = Counter()
        for word, count in words.items():
            row, i = [], 0
            while i < len(word):
                is_pair = tuple(word[i : i + 2]) == two
                row.append("".join(two) if is_pair else word[i])
                i += 1 + is_pair
            new_words[tuple(row)] += count
        words = new_words
    return tokens


def test_learned_tokens_are_those_of_plain_merging():
    old = old_tokenizer("bpe")
    texts = ["zz"] * 9 + ["zzx"] * 5 + ["zzxy"] * 3 + ["yw"] * 2
    words = Counter(tuple(old.ids_to_tokens(row)) for row in old.encode(texts))
    new = extend_tokenizer(old, texts, 4)
    assert new.ids_to_tokens(range(old.max_id + 1, new.max_id + 1)) == merge_plainly(words, 4)


def test_each_word_of_a_list_becomes_a_token(pair):
    old, _ = pair
    words = ["Straße", "zurück", "Königin"]
    new = extend_tokenizer(old, [t for w in words for t in (w, " " + w)], 1000, min_frequency=1)
    for word in words:
        assert len(new.encode([f"the {word}"])[0]) == 1 + len(new.encode(["the"])[0])


def fixed_tokenizer(kind):
    if kind == "words":
        inner = tokenizers.Tokenizer(models.WordLevel({"</s>": 0, "a": 1}, unk_token="</s>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return Tokenizer(inner, {"eos_token": "</s>"})
    if kind == "sides":
        return old_tokenizer("bpe").with_target_tokenizer(old_tokenizer("wordpiece"))
    return train_tokenizer(OLD, Choice(kind), 300)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("byte", "fixed (bytes or characters)"),
        ("char", "fixed (bytes or characters)"),
        ("words", "fixed (kind WordLevel)"),
        ("sides", "a tokenizer for each side"),
    ],
)
def test_vocabularies_that_cannot_grow_are_refused(kind, message):
    with pytest.raises(UserError, match=re.escape(message)):
        extend_tokenizer(fixed_tokenizer(kind), NEW, 5)


def test_text_without_new_tokens_is_refused():
    old = old_tokenizer("bpe")
    with pytest.raises(UserError, match="no tokens to add"):
        extend_tokenizer(old, ["a"], 5)
