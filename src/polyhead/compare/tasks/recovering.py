"""Tasks that ask for some tokens of a text, compared by how likely the right ones are and how often they are said.

Shapes: B units in a batch, T tokens, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyhead.analysis.recovered import Recovered, recovered
from polyhead.compare.measure import counted, loss_and_ppl
from polyhead.compare.significance import Floats, mean_of
from polyhead.compare.tasks.base import LOSS_OF_TOKENS, Found, Measure, Piece, Words, measured_split
from polyhead.data.arrays import Ints
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.tasks.plain_text import store_of

TYPICAL = 64  # batches of which the one of a middling width is typical
Numbered = Iterable[tuple[Ints, Any]]
"""Numbers of units (B,), and the batch that holds them."""


def headed(model: Any, x: Tensor) -> Tensor:
    """Logits of what was read, by the model's head."""
    out: Tensor = model.head(x)
    return out


@dataclass(frozen=True)
class Recovering:
    """How designs of such a task are compared: what a unit is, and how it is read."""

    words: Words
    numbered: Callable[[Any, Any], Numbered]  # of the task, a text
    features: Callable[[Any, Any], Tensor]  # of the model, a batch: (B, T, C)
    piece: Callable[[Any], Piece]  # of a batch
    store_of: Callable[[Recipe, str, Tokenizer], Any] = store_of  # a split of the text
    said: Callable[[Any, Tensor], Tensor] = headed  # of the model, features of tokens asked for: their logits
    reads: Callable[[Run], Any] = lambda run: None  # what a decoder reads besides its own output

    measures: ClassVar = (
        LOSS_OF_TOKENS,
        Measure("accuracy", "accuracy", "accuracy", mean_of, False, 4, 3, of_tokens=True, across=False),
    )

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    def tokens_per_step(self, task: Any) -> float:
        """The mean number of tokens that a batch asks for."""
        return counted(task)

    def typical(self, task: Any) -> Piece:
        """Of the first validation batches one of the median width."""
        batches = [batch for _, batch in islice(self.numbered(task, task.valid), TYPICAL)]
        return self.piece(sorted(batches, key=lambda batch: int(batch.labels.size(1)))[len(batches) // 2])

    def pieces(self, task: Any) -> Iterator[Piece]:
        """The validation text."""
        return (self.piece(batch) for _, batch in self.numbered(task, task.valid))

    def quality(self, run: Run, recipe: Recipe, task: Any) -> tuple[Found, Found]:
        """Loss of the validation text; accuracy of the test text, if there is one."""
        valid = text = self.by_unit(run.model, self.numbered(task, task.valid))
        if recipe.data.test:
            text = self.by_unit(run.model, self.numbered(task, self.store_of(recipe, "test", run.tokenizer)))
        found: Found = {
            "split": measured_split(recipe),
            **loss_and_ppl(sum(one.nll for one in valid), sum(one.asked for one in valid)),
            "accuracy": sum(one.right for one in text) / sum(one.asked for one in text),
            "signatures": {},
        }
        return found, {"valid": list(map(list, valid)), "text": list(map(list, text))}

    @torch.no_grad()
    def by_unit(self, model: Any, batches: Numbered) -> list[Recovered]:
        """What became of the tokens asked for in each unit, in the order of their numbers."""
        found: dict[int, Recovered] = {}
        for numbers, batch in batches:
            here = beside(model, batch)
            rows = zip(numbers, self.features(model, here), here.labels, strict=True)
            found |= {
                int(number): recovered(x, lambda part: self.said(model, part), y) for number, x, y in rows
            }
        return [found[number] for number in sorted(found)]

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """-log p and what was right of every unit, and the tokens asked for."""
        valid, text = (np.array(kept[name], dtype=np.float64) for name in ("valid", "text"))
        return {"loss": valid[:, [0, 2]], "accuracy": text[:, [1, 2]]}

    def decode_speed(self, run: Run, recipe: Recipe) -> None:
        """What is asked for is given; nothing is decoded."""

    def memory(self, run: Run) -> Any:
        """What its decoder reads, if it has one."""
        return self.reads(run)
