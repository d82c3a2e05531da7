"""Notes on tokens that the tokenizer of a proposed recipe will not know."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from polyhead.config.recipe import Recipe
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.tokenizers.files import FILE
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.tokenizers.unknown_tokens import count_unknown
from polyhead.train.tasks.base import TaskFactory

_MAX_TEXTS = 20_000  # texts of the sample
_MAX_CHARACTERS = 2_000_000  # of the sample
_BYTE_KINDS = ("bpe", "byte")  # no text is unknown to them


def describe_unknown_tokens(recipe: Recipe) -> list[str]:
    """A note on the share of unknown tokens in the training text, if there will be any.

    A tokenizer that the recipe trains is trained on a sample of the text; that of a local run is loaded.
    """
    section, factory = recipe.tokenizer, _get_factory(recipe)
    if recipe.init_from is not None:
        if not (Path(recipe.init_from.run) / FILE).is_file():
            return []
        tokenizer = Tokenizer.load(recipe.init_from.run)
    elif section.kind.name in _BYTE_KINDS or section.kind.options.get("byte_fallback"):
        return []
    else:
        sample = _read_sample(factory, recipe)
        tokenizer = train_tokenizer(sample, section.kind, section.vocab_size, section.sentinels)
    unknown = count_unknown(_read_sample(factory, recipe), tokenizer)
    if not unknown.unknown:
        return []
    note = tr("training text: {counts}", counts=unknown.describe())
    return [note, unknown.describe_warning()] if unknown.is_frequent else [note]


def _get_factory(recipe: Recipe) -> TaskFactory:
    factory: TaskFactory = TASK.get(recipe.task.name)
    return factory


def _read_sample(factory: TaskFactory, recipe: Recipe) -> Iterator[str]:
    """Yield the first texts of the training split."""
    num_characters = 0
    for text in islice(factory.iter_texts(recipe), _MAX_TEXTS):
        yield text
        num_characters += len(text)
        if num_characters > _MAX_CHARACTERS:
            return
