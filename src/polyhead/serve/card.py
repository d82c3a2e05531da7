"""What the page says of a model: how long a text may be, and texts to begin with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from polyhead.analysis.vectors import reach
from polyhead.run import Run
from polyhead.serve.samples import (
    Sample,
    begin_text,
    everyday_samples,
    is_unspaced,
    mask_word,
    validation_samples,
)
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
    examples: list[Any]  # texts, or pairs of them

    @classmethod
    def of(cls, run: Run, *, shows_own: bool) -> Card:
        """Measured on the validation text of the run where that is on this machine; the examples are of it with ``shows_own``."""
        own, everyday = validation_samples(run.recipe), _everyday(run)
        return cls(limit_text(run, own or everyday), examples(run, own if own and shows_own else everyday))


def limit_text(run: Run, samples: Sequence[Sample]) -> TextLimit:
    """As many words as fit at the number of tokens that a word of the samples takes, rounded down."""
    tokens, texts = _most_tokens(run), [text for sample in samples for text in sample]
    n = sum(map(len, run.tokenizer.encode(texts)))
    if not n:
        return TextLimit(tokens)
    characters = round_down(tokens * sum(map(len, texts)) // n)
    words = round_down(tokens * sum(len(text.split()) for text in texts) // n)
    return TextLimit(tokens, characters, None if is_unspaced("".join(texts)) else words)


def examples(run: Run, samples: Sequence[Sample]) -> list[Any]:
    """Different ones of moderate length; for language models how they begin, for those that fill in with a mask."""
    different = list(dict.fromkeys(tuple(map(first_sentence, one)) for one in samples))
    moderate = [one for one in different if SHORTEST <= sum(map(len, one)) <= LONGEST]
    sentences = [one for one in moderate if one[-1].endswith(SENTENCE_ENDS)]
    chosen = (sentences or moderate or different)[:EXAMPLES]
    if run.kind == "decoder" and run.generation.chat is None:
        return list(dict.fromkeys(begin_text(text) for (text,) in chosen))
    if run.kind == "encoder" and run.config.head:
        return [mask_word(text) for (text,) in chosen]
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


def _everyday(run: Run) -> list[Sample]:
    """Sentences in the language that the model reads; none where it is not known and one tokenizer writes two."""
    tokenizer, named = run.tokenizer, run.recipe.data.source_lang if run.recipe else ""
    language = named or settled_languages(tokenizer)["source"]
    translates = run.kind == "encoder-decoder" and (
        run.recipe is None or run.recipe.task.name == "translation"
    )
    if translates and not language and tokenizer.target is tokenizer:
        return []
    return everyday_samples(tokenizer, language)


def _most_tokens(run: Run) -> int:
    """Tokens of a text without the special ones around it."""
    most = reach(run.generation, run.config.max_len) if run.kind != "decoder" else run.config.max_len
    if run.recipe is not None:
        most = min(most, run.recipe.data.max_len)
    if run.kind == "encoder-decoder":
        return max(1, most - run.tokenizer.sides.added[0])
    around = run.tokenizer.around(1)
    return max(1, most - (0 if run.kind == "decoder" else len(around.before) + len(around.after)))
