"""Grow the vocabulary of a trained tokenizer: BPE merges are continued on new text.

Pairs of old tokens that follow one another in a word are merged, the most frequent first (Sennrich et al.,
2016). BPE has the merges after the old ones, WordPiece the new tokens in its vocabulary, and a new piece of a
unigram model is a little more probable than the old pieces that it replaces. Old tokens keep their ids.
Characters that the old tokenizer lacks stay unknown, or bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.special_tokens import BYTE_TOKEN
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import models, pre_tokenizers, trainers

_BATCH = 1000  # texts
_FIRST_CHAR, _MAX_ID = 0xE000, 1_000_000  # for the trainer of BPE an old token is one character
_IMPOSSIBLE_SCORE = -5_000.0  # of added tokens in a unigram model: no text is split into them
_BONUS = 1e-3  # added to the log-probability of a new piece for each of its old ones, so that it is preferred


def extend_tokenizer(
    tokenizer: Tokenizer, texts: Iterable[str], size: int, min_frequency: int = 2
) -> Tokenizer:
    """A tokenizer with up to ``size`` more tokens, learned from texts; their ids follow the old ones."""
    rules = json.loads(tokenizer.tokenizer_json)
    model, split_token = rules["model"], _make_splitter(tokenizer)
    _check_model(tokenizer, model)
    prefix = model.get("continuing_subword_prefix") or ""
    ids = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json).get_vocab(with_added_tokens=True)
    new_ids: dict[str, int] = {}
    merges = []
    for pair in _learn_merges(tokenizer, texts, size, min_frequency):
        left, right = (
            first + "".join(token.removeprefix(prefix) for token in others)
            for first, *others in map(tokenizer.ids_to_tokens, pair)
        )
        merges.append([left, right])
        if (token := left + right.removeprefix(prefix)) not in ids and token not in new_ids:
            new_ids[token] = tokenizer.max_id + 1 + len(new_ids)
            if len(new_ids) == size:
                break
    if not new_ids:
        raise UserError(
            "tokenizer.extend: no tokens to add: in the text, the words are single tokens already or no pair "
            f"of tokens occurs {min_frequency} times"
        )
    # the library numbers added tokens outside of the vocabulary by its size, so they become part of it
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        old = sorted(ids, key=ids.__getitem__)
        if len(old) != tokenizer.max_id + 1:
            raise UserError("tokenizer.extend: the ids of this unigram tokenizer have gaps; expected none")
        model["vocab"] = [[token, scores.get(token, _IMPOSSIBLE_SCORE)] for token in old]
        for token in new_ids:
            pieces = [old[i] for i in split_token(token)]
            model["vocab"].append([token, sum(map(scores.__getitem__, pieces)) + _BONUS * (len(pieces) - 1)])
    else:
        model["vocab"] = ids | new_ids
        if "merges" in model:
            model["merges"] = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]] + merges
    inner = tokenizers.Tokenizer.from_str(json.dumps(rules))
    return Tokenizer(inner, tokenizer.roles)


def find_new_tokens(old: Tokenizer, new: Tokenizer) -> dict[int, list[int]]:
    """The tokens that an extended tokenizer has more: their ids, and the ids of the old tokens of each."""
    split_token, ids = _make_splitter(old), range(old.max_id + 1, new.max_id + 1)
    return {i: split_token(token) for i, token in zip(ids, new.ids_to_tokens(ids), strict=True)}


def _check_model(tokenizer: Tokenizer, model: Mapping[str, Any]) -> None:
    if tokenizer.target_tokenizer is not tokenizer:
        raise UserError(
            "tokenizer.extend: this model has a tokenizer for each side; expected one of both sides"
        )
    if model["type"] not in ("BPE", "Unigram", "WordPiece") or model.get("merges") == []:
        kind = "bytes or characters" if model["type"] == "BPE" else f"kind {model['type']}"
        raise UserError(
            f"tokenizer.extend: the tokens of this tokenizer are fixed ({kind}); expected BPE, unigram or "
            "WordPiece"
        )


def _learn_merges(
    tokenizer: Tokenizer, texts: Iterable[str], size: int, min_frequency: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of sequences of old tokens, each to be merged to one token, in the order of merging."""
    counts = Counter(word for line in _spell_tokens(tokenizer, texts) for word in line.split())
    # some merges make an old token in another way and add none; a word of n tokens has n - 1
    max_merges = min(2 * size, sum(map(len, counts)))
    trainer = trainers.BpeTrainer(
        vocab_size=len(set().union(*counts)) + max_merges, min_frequency=min_frequency, show_progress=False
    )
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    bpe.train_from_iterator((" ".join([word] * counts[word]) for word in ranked), trainer)
    for pair in json.loads(bpe.to_str())["model"]["merges"]:
        left, right = ([ord(c) - _FIRST_CHAR for c in one] for one in pair)
        yield left, right


def _spell_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    """Yield each text as a character for each token, with spaces between words and for fixed tokens."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json)
    inner.encode_special_tokens = True
    tokens = {i: token for token, i in inner.get_vocab(with_added_tokens=True).items()}
    fixed_ids = {*tokenizer.special_ids, *inner.get_added_tokens_decoder(), tokenizer.unknown_id}
    fixed_ids |= {i for i, token in tokens.items() if BYTE_TOKEN.fullmatch(token) or i > _MAX_ID}
    starts, texts = {i for i, token in tokens.items() if token.startswith("▁")}, iter(texts)
    while batch := list(islice(texts, _BATCH)):
        for encoding in inner.encode_batch(batch, add_special_tokens=False):
            ids, words = encoding.ids, encoding.word_ids
            yield "".join(
                " " * (word != last or i in starts) + (" " if i in fixed_ids else chr(_FIRST_CHAR + i))
                for i, word, last in zip(ids, words, [None, *words[:-1]], strict=True)
            )


def _make_splitter(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """A function from a token to the ids of the tokens that the tokenizer splits it into."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json).model
    if not isinstance(inner, models.WordPiece):
        return lambda token: [piece.id for piece in inner.tokenize(token)]
    prefix, vocab = inner.continuing_subword_prefix, tokenizers.Tokenizer(inner).get_vocab()

    def split_word(token: str) -> list[int]:
        ids = []
        while token not in ("", prefix):  # longest match first, also from the middle of a word
            end = next(end for end in range(len(token), 0, -1) if token[:end] in vocab)
            ids.append(vocab[token[:end]])
            token = prefix + token[end:]
        return ids

    return split_word
