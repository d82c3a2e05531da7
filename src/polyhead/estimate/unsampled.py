"""Tokens and classes that a data sample does not contain; those of the teachers of distillation are used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from polyhead.config.data_config import TokenizerConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporters
from polyhead.train.tasks.base import HasClasses, Task, TaskFactory


class RunTokenizer(NamedTuple):
    """The tokenizer of a run, and the vocabulary size of its model."""

    tokenizer: Tokenizer
    vocab_size: int
    # index of the teacher whose tokenizer is assumed; None without an assumption
    teacher_index: int | None = None


def extrapolate_tokenizer(
    tokenizer: Tokenizer, config: TokenizerConfig, teachers: Sequence[Run]
) -> RunTokenizer:
    """Extrapolate a tokenizer trained on a sample to the complete text.

    It is the tokenizer of the first teacher that training on the complete text could give: one of the same
    kind, with at least as many tokens, and at most the configured vocabulary size. Without such a teacher it
    is the trained one with the configured vocabulary size; for bytes and characters, with its own, because a
    sample contains nearly all of them.
    """
    max_vocab_size = max(config.vocab_size, tokenizer.vocab_size)
    for number, teacher in enumerate(teachers):
        candidate = teacher.tokenizer
        if tokenizer.vocab_size <= candidate.vocab_size <= max_vocab_size and _tokenizer_rules(
            candidate
        ) == _tokenizer_rules(tokenizer):
            is_same = candidate.sha256 == tokenizer.sha256
            return RunTokenizer(candidate, candidate.vocab_size, None if is_same else number)
    return RunTokenizer(
        tokenizer, tokenizer.vocab_size if config.kind.name in ("byte", "char") else max_vocab_size
    )


def open_with_classes(
    part: TaskFactory, recipe: Recipe, tokenizer: Tokenizer, teachers: Sequence[Run]
) -> Task:
    """Open the task, with the classes of the first teacher that knows all classes of the text."""
    if isinstance(part, HasClasses) and teachers:
        classes = set(part.read_classes(recipe))
        for teacher in teachers:
            if classes <= set(teacher.config.labels):
                return part.open_with_labels(teacher.config.labels, recipe, tokenizer, Reporters())
    return part.open(recipe, tokenizer, Reporters())


def _tokenizer_rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """The rules of a tokenizer without its trained vocabulary and merges."""
    rules: dict[str, Any] = json.loads(tokenizer.tokenizer_json)
    model = {name: value for name, value in rules["model"].items() if name not in ("vocab", "merges")}
    return rules | {"model": model, "added_tokens": [token["content"] for token in rules["added_tokens"]]}
