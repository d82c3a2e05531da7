"""Special tokens around a text, as a language model was trained with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyhead.config.recipe import Recipe
from polyhead.data.readers.tabular import infer_table_format
from polyhead.tokenizers.tokenizer import Tokenizer


class PromptTemplate(NamedTuple):
    """Tokens around a whole text."""

    prefix_ids: list[int]
    suffix_ids: list[int]  # empty if the end of a text has no token
    always_add_prefix: bool  # whether ``prefix_ids`` also precedes a prompt that is not empty

    def build_prompt(self, ids: list[int]) -> list[int]:
        """The prompt to continue a text; for an empty text, the prefix alone."""
        return [*self.prefix_ids, *ids] if self.always_add_prefix or not ids else ids


def keep_last(ids: Sequence[int], n: int, prefix_ids: Sequence[int]) -> list[int]:
    """The last ``n`` tokens of a text, of which the first are ``prefix_ids`` if the text begins with them."""
    n_prefix, start = len(prefix_ids), max(0, len(ids) - n)
    if n_prefix >= n or list(ids[:n_prefix]) != list(prefix_ids):
        return list(ids[start:])
    return [*prefix_ids, *ids[start + n_prefix :]]


def get_prompt_template(recipe: Recipe | None, tokenizer: Tokenizer) -> PromptTemplate:
    """The prompt template of a run or of a published checkpoint (``recipe`` None).

    The prefix is that of the tokenizer, as published checkpoints and their fine-tunes expect. Without one,
    lines, paragraphs and the values of a table start and end with the document token; in whole files, where
    documents are long and document tokens rare, a text starts after the end of a line. A published checkpoint
    without a prefix was trained on documents with such tokens, but can continue from the middle of one, as
    GPT-2.
    """
    prefix_ids, document_ids = tokenizer.prefix_ids, [tokenizer.eos_id]
    if recipe is None:
        return PromptTemplate(prefix_ids or document_ids, [], bool(prefix_ids))
    if recipe.data.document_separator != "file" or _is_tabular(recipe):
        return PromptTemplate(prefix_ids or document_ids, document_ids, True)
    if prefix_ids:
        return PromptTemplate(prefix_ids, [], True)
    (newline_ids,) = tokenizer.encode(["\n"])
    is_token = newline_ids and tokenizer.decode([newline_ids]) == ["\n"]
    return PromptTemplate(newline_ids if is_token else document_ids, [], False)


def _is_tabular(recipe: Recipe) -> bool:
    """Whether a language model was trained on columns of tables, in which each value is a document."""
    files = [Path(name) for name in recipe.data.list_files("train")]
    return recipe.task.name == "language-model" and infer_table_format(files, recipe.data.format) is not None
