"""Tasks that ask for some tokens of a text, compared by how likely the right ones are and how often they are said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyhead.analysis.recovered import Recovered, recovered
from polyhead.compare.measure import loss_and_ppl
from polyhead.compare.significance import Floats, mean_of
from polyhead.compare.tasks.base import Found, Measure
from polyhead.data.rows import Ints

Numbered = Iterable[tuple[Ints, Any]]
"""Numbers of units (B,), and the batch that holds them."""
TYPICAL = 64  # batches of which the one with a middling number of tokens is typical

MEASURES = (
    Measure("loss", "loss", "validation loss", mean_of, True, 3, 3, of_tokens=True),
    Measure("accuracy", "accuracy", "accuracy", mean_of, False, 4, 3, of_tokens=True),
)


@torch.no_grad()
def by_unit(
    batches: Numbered, features: Callable[[Any], Tensor], head: Callable[[Tensor], Tensor]
) -> list[Recovered]:
    """What became of the tokens asked for in each unit, in the order of their numbers."""
    found: dict[int, Recovered] = {}
    for numbers, batch in batches:
        rows = zip(features(batch), batch.labels, strict=True)
        found |= {
            int(number): recovered(x, head, y.to(x.device))
            for number, (x, y) in zip(numbers, rows, strict=True)
        }
    return [found[number] for number in sorted(found)]


def quality(valid: list[Recovered], test: list[Recovered] | None) -> tuple[Found, Found]:
    """Loss of the validation text; accuracy of the test text, if there is one."""
    text = valid if test is None else test
    found: Found = {
        "split": "valid" if test is None else "test",
        **loss_and_ppl(sum(one.nll for one in valid), sum(one.asked for one in valid)),
        "accuracy": sum(one.right for one in text) / sum(one.asked for one in text),
        "signatures": {},
    }
    return found, {"valid": list(map(list, valid)), "text": list(map(list, text))}


def statistics(kept: Found) -> dict[str, Floats]:
    """-log p and what was right of every unit, and the tokens asked for."""
    valid, text = (np.array(kept[name], dtype=np.float64) for name in ("valid", "text"))
    return {"loss": valid[:, [0, 2]], "accuracy": text[:, [1, 2]]}


def middling(batches: Iterator[Any], size: Callable[[Any], int]) -> Any:
    """Of the first batches the one of the median size."""
    found: list[Any] = sorted(islice(batches, TYPICAL), key=size)
    return found[len(found) // 2]
