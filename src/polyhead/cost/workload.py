"""Data types of the cost model: batch shape and operation counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyhead.core.choice import Choice


class BatchShape(NamedTuple):
    """Shape of one batch, padding included."""

    rows: int
    length: int  # of the decoder input, or of the encoder input of an encoder-only model
    source: int = 0  # length of the encoder input of an encoder-decoder
    # labels, for which the head computes logits; None: one for every token of length
    label_count: int | None = None

    @property
    def labels(self) -> int:
        return self.rows * self.length if self.label_count is None else self.label_count

    @property
    def tokens(self) -> int:
        """Number of tokens of both sides."""
        return self.rows * (self.length + self.source)

    def select_rows(self, n: int) -> BatchShape:
        """n of the rows, with their share of the labels."""
        count = self.label_count
        return self._replace(rows=n, label_count=None if count is None else round(count * n / self.rows))


class OpCount(NamedTuple):
    """Operations of one part of a forward pass: name, number of layers, operations per layer, formula.

    ``masked_flops`` are the operations of (query, key) pairs that the mask hides: plain matrix products
    compute them, a kernel that skips the blocks above the diagonal does not.
    """

    name: str
    times: int
    flops_each: int
    formula: str
    masked_flops: int = 0

    @property
    def total(self) -> int:
        return self.times * self.flops_each


class AttentionExtent(NamedTuple):
    """The size of one attention layer: rows, queries of a row, and the slots they attend to."""

    rows: int
    queries: int
    slots: int
    new_slots: int  # slots whose keys and values are computed here; the others are cached


class UnknownFormulaError(Exception):
    """A part has no formula in this package: a user-defined one."""


def merge_op_counts(op_counts: Iterator[OpCount]) -> list[OpCount]:
    """Merge entries of the same name and size into one; ``times`` counts them."""
    merged: dict[tuple[str, int, int], OpCount] = {}
    for work in op_counts:
        key = (work.name, work.flops_each, work.masked_flops)
        merged[key] = work._replace(times=merged[key].times + 1) if key in merged else work
    return list(merged.values())


def lookup_formula(table: dict[str, Any], choice: Choice) -> Any:
    """The entry of a part in a table; raises ``UnknownFormulaError`` if there is none."""
    if choice.name not in table:
        raise UnknownFormulaError(f"{choice.name!r}")
    return table[choice.name]
