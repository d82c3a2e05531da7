"""What a sample does not show of the whole text: some of its tokens and classes, which the teachers of a student tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from polyhead.data_sections import TokenizerConfig
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.reporting import Reporters
from polyhead.train.tasks.base import OfClasses, RunTask, TaskPart


class Tokens(NamedTuple):
    """The tokenizer of a run, and how many tokens its model will know."""

    tokenizer: Tokenizer
    vocab_size: int
    teacher: int | None = None  # the number of that whose tokenizer it is said to be


def tokens_of_whole(trained: Tokenizer, asked: TokenizerConfig, teachers: Sequence[Run]) -> Tokens:
    """From a tokenizer that was trained on a sample: that of the first teacher which the whole text may well give.

    Such a one is made alike, and has no fewer tokens, nor more than the recipe asks for. Without one it is what was
    trained, with room for as many as are asked for; but of bytes and characters a sample has next to all.
    """
    most = max(asked.vocab_size, trained.vocab_size)
    for number, teacher in enumerate(teachers):
        theirs = teacher.tokenizer
        if trained.vocab_size <= theirs.vocab_size <= most and _making(theirs) == _making(trained):
            same = theirs.sha256 == trained.sha256
            return Tokens(theirs, theirs.vocab_size, None if same else number)
    return Tokens(trained, trained.vocab_size if asked.kind.name in ("byte", "char") else most)


def open_with_classes(
    part: TaskPart, recipe: Recipe, tokenizer: Tokenizer, teachers: Sequence[Run]
) -> RunTask:
    """The task over a text, with the classes of the first teacher who knows all that the text has."""
    if isinstance(part, OfClasses) and teachers:
        found = set(part.classes(recipe))
        for teacher in teachers:
            if found <= set(teacher.config.labels):
                return part.open_with(teacher.config.labels, recipe, tokenizer, Reporters())
    return part.open(recipe, tokenizer, Reporters())


def _making(tokenizer: Tokenizer) -> dict[str, Any]:
    """How a tokenizer cuts and joins, without what it has learned."""
    rules: dict[str, Any] = json.loads(tokenizer.rules)
    model = {name: value for name, value in rules["model"].items() if name not in ("vocab", "merges")}
    return rules | {"model": model, "added_tokens": [token["content"] for token in rules["added_tokens"]]}
