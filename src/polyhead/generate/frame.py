"""What stands before and after a text, as a language model knows it from its training."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from polyhead.config import ModelConfig
from polyhead.data.text import table_of
from polyhead.recipe import Recipe
from polyhead.text.tokenizer import Tokenizer


class Frame(NamedTuple):
    """Tokens about a whole text."""

    begin: list[int]
    end: list[int]  # none where nothing says that a text ends
    always: bool  # whether ``begin`` also stands before a prompt that is not empty

    def prompt(self, ids: list[int]) -> list[int]:
        """What a model reads that goes on from a text; of an empty one, how texts begin."""
        return [*self.begin, *ids] if self.always or not ids else ids


def frame(recipe: Recipe | None, tokenizer: Tokenizer) -> Frame:
    """What the tokenizer's rules put before a text stands there, as a published checkpoint and what began with one know it.

    Where they put nothing, lines, paragraphs and the values of a table begin and end with the mark of a document; in whole
    files, where documents are long and marks rare, a text begins after the end of a line. A published checkpoint without
    such rules has learned from marked documents, but goes on from the middle of one, as GPT-2.
    """
    begin, mark = tokenizer.begin, [tokenizer.eos_id]
    if recipe is None:
        return Frame(begin or mark, [], bool(begin))
    if recipe.data.documents != "file" or _of_tables(recipe):
        return Frame(begin or mark, mark, True)
    if begin:
        return Frame(begin, [], True)
    (line,) = tokenizer.encode(["\n"])
    known = line and tokenizer.decode([line]) == ["\n"]
    return Frame(line if known else mark, [], False)


def _of_tables(recipe: Recipe) -> bool:
    """Whether a language model has learned from columns of tables, of which each value is a document."""
    files = [Path(name) for name in recipe.data.train]
    return recipe.task.name == "language-model" and table_of(files, recipe.data.format) is not None


def about_vectors(config: ModelConfig, recipe: Recipe | None, tokenizer: Tokenizer) -> Frame | None:
    """What stands about a text whose vector a language model makes, with its head or without; None for other encoders."""
    return frame(recipe, tokenizer) if config.kind == "decoder" or config.causal else None
