"""Augmentation of training pairs: changes as people write text, different in each epoch.

They are a function of (seed, epoch, row), so they are the same after a resume and with any number of
processes. Where both sides change they change alike, so the model learns to keep what it reads.

Options:
  rate: share of the pairs that are changed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from random import Random
from typing import NamedTuple

from polyhead.core.choice import Choice
from polyhead.core.option_types import Fraction
from polyhead.core.registry import AUGMENT
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.pair_store import Pair, PairStore
from polyhead.tokenizers.tokenizer import Tokenizer

Texts = tuple[str, str]  # a source and its target
EMOJI = ["😀", "😂", "🙂", "😉", "😍", "🤔", "😢", "😡", "👍", "👎", "🙏", "👋", "🎉", "❤️", "🔥", "✅"]
NOISE = ["*", "#", "|", "~", "_", "^", "=", "+", "·", "•", "…", "-", "--", '"', "'", "«", "»"]
TAGS = ("b", "i", "u", "em", "strong", "span", "a", "g")
_CHUNK = 4096  # pairs that are augmented at once
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Augmenter(NamedTuple):
    """A part: the share of the pairs that it changes, and how."""

    rate: float
    change: Callable[[str, str, Random], Texts]


class PairAugmenter:
    """All parts of a recipe, applied one after the other to the texts of tokenized pairs."""

    def __init__(self, choices: Sequence[Choice], tokenizer: Tokenizer, seed: int, max_len: int) -> None:
        self.parts: list[Augmenter] = [AUGMENT.build(choice) for choice in choices]
        self.tokenizer, self.seed, self.max_len = tokenizer, seed, max_len
        self.measure_rows = lru_cache(maxsize=1)(self._measure_rows)

    def __call__(self, epoch: int, rows: IdArray | Sequence[int], pairs: Sequence[Pair]) -> list[Pair]:
        """Tokens of the pairs of some rows -> the same after augmentation.

        A pair that would be longer than the maximum, or would have an unknown token, stays.
        """
        sides, special = (self.tokenizer, self.tokenizer.target_tokenizer), {*self.tokenizer.special_ids}
        randoms, chosen = zip(*(self._draw_parts(epoch, row) for row in rows), strict=True)
        changed = [i for i, parts in enumerate(chosen) if parts]
        decoded = [one.decode([pairs[i][side] for i in changed]) for side, one in enumerate(sides)]
        texts: list[Texts] = list(zip(*decoded, strict=True))
        for k, i in enumerate(changed):
            for part in chosen[i]:
                texts[k] = part.change(*texts[k], randoms[i])
        encoded = [one.encode([pair[side] for pair in texts]) for side, one in enumerate(sides)]
        result = list(pairs)
        for i, source, target in zip(changed, *encoded, strict=True):
            marks = takewhile(special.__contains__, pairs[i][0])  # such as language tags
            new = [*marks, *source], target
            is_known = all(
                one.unknown_id not in ids or one.unknown_id in old
                for one, ids, old in zip(sides, new, pairs[i], strict=True)
            )
            if is_known and all(0 < len(ids) <= self.max_len for ids in new):
                result[i] = new
        return result

    def _measure_rows(self, epoch: int, store: PairStore) -> tuple[IdArray, IdArray]:
        """The lengths of sources and targets of a store, as in ``PairStore``, after augmentation."""
        lengths = store.source_lengths.copy(), store.target_lengths.copy()
        changed = [row for row in range(len(store)) if self._draw_parts(epoch, row)[1]]
        for start in range(0, len(changed), _CHUNK):
            rows = changed[start : start + _CHUNK]
            pairs = store.read_pairs(rows)
            for row, old, new in zip(rows, pairs, self(epoch, rows, pairs), strict=True):
                for side in (0, 1):
                    lengths[side][row] += len(new[side]) - len(old[side])
        return lengths

    def _draw_parts(self, epoch: int, row: int) -> tuple[Random, list[Augmenter]]:
        """The random numbers of a row, and the parts that change it."""
        random = Random(f"{self.seed} {epoch} {row}")  # seeds of text give the same numbers everywhere
        return random, [part for part in self.parts if random.random() < part.rate]


@AUGMENT.register("caps")
def caps(*, rate: Fraction = 0.02) -> Augmenter:
    """Both sides in capitals.

    Paper: Bogoychev et al., 2023 (OpusTrainer)
    When: titles and shouting; scripts without capitals do not change
    Recipe: data: {augment: [caps]}
    """
    return _change_both(rate, str.upper)


@AUGMENT.register("title")
def title(*, rate: Fraction = 0.02) -> Augmenter:
    """Both sides With a Capital at the Beginning of Each Word.

    Paper: Bogoychev et al., 2023 (OpusTrainer)
    When: headlines
    Recipe: data: {augment: [title]}
    """
    return _change_both(rate, lambda text: re.sub(r"(?<!\S)\S", lambda match: match[0].upper(), text))


@AUGMENT.register("no_stop")
def no_stop(*, rate: Fraction = 0.02) -> Augmenter:
    """Both sides without the full stop at their end, if both have one.

    Paper: Bogoychev et al., 2023 (OpusTrainer)
    When: chat, labels, headings
    Recipe: data: {augment: [no_stop]}
    """

    def remove_stops(source: str, target: str, random: Random) -> Texts:
        bare = [re.sub(r"(?<![.。])\s*[.。]\s*$", "", text) for text in (source, target)]
        has_stops = all(bare) and bare[0] != source and bare[1] != target
        return (bare[0], bare[1]) if has_stops else (source, target)

    return Augmenter(rate, remove_stops)


@AUGMENT.register("typos")
def typos(*, rate: Fraction = 0.02, share: Fraction = 0.1) -> Augmenter:
    """Typing errors in the source: two letters swapped, one missing, doubled or another.

    Paper: Belinkov and Bisk, 2018
    When: text without corrections
    Recipe: data: {augment: [{name: typos, share: 0.1}]}
    Options:
      share: share of the words of a changed source that get an error; words of fewer than 4 letters stay
    """

    def mistype(word: str, random: Random) -> str:
        if len(word) < 4 or not word.isalpha() or random.random() >= share:
            return word
        i, kind = 1 + int(random.random() * (len(word) - 2)), int(random.random() * 4)
        letter = _LETTERS[int(random.random() * 26)] if kind == 3 else word[i] * (2 * (kind == 2))
        middle = word[i + 1] + word[i] if kind == 0 else letter
        return word[:i] + middle + word[i + 2 - (kind > 0) :]

    return _change_words(rate, mistype)


@AUGMENT.register("noise")
def noise(*, rate: Fraction = 0.02, share: Fraction = 0.1) -> Augmenter:
    """Characters in the source that have no meaning: * # | and others, between words.

    Paper: Bogoychev et al., 2023 (OpusTrainer)
    When: text from web pages, OCR, or with remains of markup
    Recipe: data: {augment: [{name: noise, share: 0.1}]}
    Options:
      share: share of the words of a changed source with such a character before them
    """

    def disturb(word: str, random: Random) -> str:
        return word if random.random() >= share else f"{_pick(NOISE, random)} {word}"

    return _change_words(rate, disturb)


@AUGMENT.register("emoji")
def emoji(*, rate: Fraction = 0.02) -> Augmenter:
    """An emoji at the beginning or the end of both sides.

    Paper: Bogoychev et al., 2023 (OpusTrainer)
    When: chat; the tokenizer needs bytes, or the emoji in its training text
    Recipe: data: {augment: [emoji]}
    """
    return _add_to_both(rate, partial(_pick, EMOJI))


@AUGMENT.register("urls")
def urls(*, rate: Fraction = 0.02) -> Augmenter:
    """A web or mail address at the beginning or the end of both sides.

    When: addresses have to come through as they are
    Recipe: data: {augment: [urls]}
    """

    def make_address(random: Random) -> str:
        sizes = [2 + int(random.random() * 4) for _ in range(2)]
        page, name = ("".join(_pick(_LETTERS, random) for _ in range(size)) for size in sizes)
        host = f"{name}.{_pick(('com', 'org', 'net', 'de', 'cn'), random)}"
        kinds = f"https://{host}/{page}", f"https://{host}", f"www.{host}", f"{page}@{host}"
        return _pick(kinds, random)

    return _add_to_both(rate, make_address)


@AUGMENT.register("numbers")
def numbers(*, rate: Fraction = 0.02) -> Augmenter:
    """Numbers that are on both sides become others with as many digits, the same on both.

    When: numbers have to come through as they are
    Recipe: data: {augment: [numbers]}
    """

    def replace_numbers(source: str, target: str, random: Random) -> Texts:
        for number in sorted({*re.findall(r"\d+", source)} & {*re.findall(r"\d+", target)}):
            low, size = (10 ** (len(number) - 1) if len(number) > 1 else 0), len(number)
            other, pattern = str(low + int(random.random() * (10**size - low))), rf"(?<!\d){number}(?!\d)"
            source, target = re.sub(pattern, other, source), re.sub(pattern, other, target)
        return source, target

    return Augmenter(rate, replace_numbers)


@AUGMENT.register("tags")
def tags(*, rate: Fraction = 0.02) -> Augmenter:
    """Inline tags around a word that is on both sides, such as a name, or else around the whole of both.

    Paper: Bogoychev et al., 2023 (OpusTrainer)
    When: markup inside of the text has to stay, where ``translate --format`` does not place it
    Recipe: data: {augment: [tags]}
    """

    def add_tags(source: str, target: str, random: Random) -> Texts:
        name, words = _pick(TAGS, random), [re.findall(r"[\w-]+", text) for text in (source, target)]
        shared = sorted(word for word in {*words[0]} if [side.count(word) for side in words] == [1, 1])
        pattern = rf"(?<![\w-]){re.escape(_pick(shared, random))}(?![\w-])" if shared else r"(?s)^.*$"
        source, target = (re.sub(pattern, rf"<{name}>\g<0></{name}>", text) for text in (source, target))
        return source, target

    return Augmenter(rate, add_tags)


def _pick(values: Sequence[str], random: Random) -> str:
    return values[int(random.random() * len(values))]


def _change_both(rate: float, change: Callable[[str], str]) -> Augmenter:
    return Augmenter(rate, lambda source, target, random: (change(source), change(target)))


def _change_words(rate: float, change: Callable[[str, Random], str]) -> Augmenter:
    """Changes each word of the source, without the white space around it."""

    def change_words(source: str, target: str, random: Random) -> Texts:
        return re.sub(r"\w+|[^\w\s]+", lambda match: change(match[0], random), source), target

    return Augmenter(rate, change_words)


def _add_to_both(rate: float, make: Callable[[Random], str]) -> Augmenter:
    """Adds the same at the beginning or the end of both sides."""

    def add(source: str, target: str, random: Random) -> Texts:
        addition = make(random)
        if random.random() < 0.2:
            return f"{addition} {source}", f"{addition} {target}"
        return f"{source} {addition}", f"{target} {addition}"

    return Augmenter(rate, add)
