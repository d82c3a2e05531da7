"""Validation texts that are kept in a run as its examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from polyhead.config.recipe import Recipe
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import read_text_lines
from polyhead.data.readers.preferences import get_prompt
from polyhead.run.run_examples import TextExample, write_examples
from polyhead.train.tasks.chat import open_split_conversations
from polyhead.train.tasks.classification import open_split_labeled
from polyhead.train.tasks.common import open_split_text
from polyhead.train.tasks.embedding import open_split_pairs
from polyhead.train.tasks.preferences import open_split_preferences
from polyhead.train.tasks.translation import open_split_corpus


def save_validation_examples(recipe: Recipe) -> None:
    """Write the first validation texts into the run directory, if their files are still there."""
    with suppress(UserError, OSError):
        write_examples(recipe.out, read_validation_texts(recipe))


def read_validation_texts(recipe: Recipe) -> Iterator[TextExample]:
    """The texts of the validation split, in order."""
    return _READERS.get(recipe.task.name, _read_lines)(recipe)


def _read_pairs(recipe: Recipe) -> Iterator[TextExample]:
    return ((pair.source, pair.target) for pair in open_split_corpus(recipe, "valid").iter_pairs())


def _read_labeled(recipe: Recipe) -> Iterator[TextExample]:
    return (example.texts for example in open_split_labeled(recipe, "valid").iter_examples())


def _read_questions(recipe: Recipe) -> Iterator[TextExample]:
    for _, row in open_split_conversations(recipe, "valid").read():
        yield from [(message.content,) for message in row.messages if message.role == "user"][:1]


def _read_prompts(recipe: Recipe) -> Iterator[TextExample]:
    return ((get_prompt(row.answers[0]),) for _, row in open_split_preferences(recipe, "valid").read())


def _read_anchors(recipe: Recipe) -> Iterator[TextExample]:
    return ((pair.anchor,) for _, pair in open_split_pairs(recipe, "valid").read())


def _read_lines(recipe: Recipe) -> Iterator[TextExample]:
    lines = read_text_lines(open_split_text(recipe, "valid"))
    # a split of a file may begin in the middle of a line
    complete_lines = islice(lines, 0 if recipe.data.valid else 1, None)
    return ((line.strip(),) for line in complete_lines if not is_blank(line))


_READERS: dict[str, Callable[[Recipe], Iterator[TextExample]]] = {
    "translation": _read_pairs, "classification": _read_labeled, "multi-label": _read_labeled,
    "regression": _read_labeled, "token-classification": _read_labeled, "question-answering": _read_labeled,
    "chat": _read_questions, "dpo": _read_prompts, "kto": _read_prompts, "embedding": _read_anchors,
}  # fmt: skip
