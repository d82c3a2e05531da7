"""What the page says of a model: how long a text may be, and texts to begin with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from polyhead.analysis.vectors import reach
from polyhead.run import Run
from polyhead.serve.samples import Sample, everyday_samples, is_unspaced, validation_samples
from polyhead.text.sides import settled_languages

EXAMPLES = 4
SHORTEST, LONGEST = 8, 160  # characters of an example, where there is a choice
SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")
FIRST_SENTENCE = re.compile(rf".{{{SHORTEST},{LONGEST}}}?(?:[.!?](?=\s)|[。！？])")


class TextLimit(NamedTuple):
    """The length of the texts that a model has learned from and can read: in tokens, and about what that is to people."""

    tokens: int
    characters: int | None = None  # None: no text is at hand to measure
    words: int | None = None  # None: its script has no blanks between words either


class Card(NamedTuple):
    """What the page begins with."""

    limit: TextLimit
    examples: list[str | list[str]]  # texts, or pairs of them

    @classmethod
    def of(cls, run: Run, *, shows_own: bool) -> Card:
        """Measured on the validation text of the run where that is on this machine; the examples are of it with ``shows_own``."""
        own, everyday = validation_samples(run.recipe), _everyday(run)
        limit = limit_text(run, own or everyday)
        most = min(LONGEST, limit.characters or LONGEST)
        return cls(limit, examples(own if own and shows_own else everyday, most))


def limit_text(run: Run, samples: Sequence[Sample]) -> TextLimit:
    """As many words as fit at the number of tokens that a word of the samples takes, rounded down."""
    tokens, texts = _most_tokens(run), [text for sample in samples for text in sample]
    n = sum(map(len, run.tokenizer.encode(texts)))
    if not n:
        return TextLimit(tokens)
    characters = round_down(tokens * sum(map(len, texts)) // n)
    words = round_down(tokens * sum(len(text.split()) for text in texts) // n)
    return TextLimit(tokens, characters, None if is_unspaced("".join(texts)) else words)


def examples(samples: Sequence[Sample], most: int = LONGEST) -> list[str | list[str]]:
    """Different ones of at most so many characters, whole sentences first."""
    different = dict.fromkeys(tuple(map(first_sentence, one)) for one in samples)
    short = [one for one in different if sum(map(len, one)) <= most]
    sentences = [one for one in short if len(one[0]) >= SHORTEST and one[-1].endswith(SENTENCE_ENDS)]
    chosen = (sentences or short)[:EXAMPLES]
    return [one[0] if len(one) == 1 else list(one) for one in chosen]


def first_sentence(text: str) -> str:
    """The first sentence of a long text, a short one whole."""
    if len(text) <= LONGEST:
        return text
    found = FIRST_SENTENCE.match(text)
    return found[0] if found else text


def round_down(number: int) -> int:
    """To a multiple of 5, 10 or 100, as an estimate is told; small numbers as they are."""
    step = next((step for most, step in ((20, 1), (100, 5), (1000, 10)) if number < most), 100)
    return max(1, number // step * step)


def reads_pairs(run: Run) -> bool:
    """Whether it is a reranker, or a classifier that has learned from pairs of texts."""
    learned = len(run.recipe.data.text) if run.recipe else 0
    return run.kind == "classifier" and (len(run.config.labels) == 1 or learned == 2)


def _everyday(run: Run) -> list[Sample]:
    """Sentences in the language that the model reads; none where it is not known and one tokenizer writes two."""
    tokenizer, named = run.tokenizer, run.recipe.data.source_lang if run.recipe else ""
    language = named or settled_languages(tokenizer)["source"]
    translates = run.kind == "encoder-decoder" and (
        run.recipe is None or run.recipe.task.name == "translation"
    )
    if translates and not language and tokenizer.target is tokenizer:
        return []
    found = everyday_samples(tokenizer, language)
    return [a + b for a, b in pairwise(found)] if reads_pairs(run) else found


def _most_tokens(run: Run) -> int:
    """Tokens of a text without the special ones around it."""
    most = reach(run.generation, run.config.max_len) if run.kind != "decoder" else run.config.max_len
    if run.recipe is not None:
        most = min(most, run.recipe.data.max_len)
    if run.kind == "encoder-decoder":
        return max(1, most - run.tokenizer.sides.added[0])
    around = run.tokenizer.around(1)
    return max(1, most - (0 if run.kind == "decoder" else len(around.before) + len(around.after)))
