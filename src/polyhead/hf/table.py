"""From published names of weights to ours and back: one table a family, used in both directions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.config import ModelConfig


class Step(NamedTuple):
    """How one published tensor is made of ours, and taken apart again."""

    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor, list[int]], Sequence[Tensor]]  # with the rows that each of ours has


SAME = Step(lambda ours: ours[0], lambda theirs, rows: [theirs])
# in memory of its own: what is the same memory under two names is written once
COPIED = Step(lambda ours: ours[0].clone(), SAME.split)
STACKED = Step(lambda ours: torch.stack(list(ours)), lambda theirs, rows: theirs.unbind())
TRANSPOSED = Step(lambda ours: ours[0].T, lambda theirs, rows: [theirs.T])
FUSED = Step(lambda ours: torch.cat(list(ours)), lambda theirs, rows: theirs.split(rows))
FUSED_TRANSPOSED = Step(lambda ours: torch.cat(list(ours)).T, lambda theirs, rows: theirs.T.split(rows))


def head_by_head(config: ModelConfig) -> Step:
    """The queries that read the first key, this key and its value, then those of the second: (heads of keys x ..., ...)."""

    def join(ours: Sequence[Tensor]) -> Tensor:
        return torch.cat([x.unflatten(0, (config.kv_heads, -1)) for x in ours], 1).flatten(0, 1)

    def split(theirs: Tensor, rows: list[int]) -> Sequence[Tensor]:
        parts = theirs.unflatten(0, (config.kv_heads, -1)).split([n // config.kv_heads for n in rows], 1)
        return [x.flatten(0, 1) for x in parts]

    return Step(join, split)


def expert_by_expert(config: ModelConfig) -> Step:
    """All experts in one tensor: (experts, ..., ...)."""
    count = config.feed_forward.options.get("n_experts", 1)
    return Step(
        lambda ours: torch.cat(list(ours)).unflatten(0, (count, -1)),
        lambda theirs, rows: theirs.flatten(0, 1).split(rows),
    )


def halves_swapped(config: ModelConfig) -> Step:
    """The second half of each head's features before the first, which rope then turns the other way."""
    half = config.shape(causal=True).head_dim // 2

    def swapped(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, half)).flip(1).flatten(0, 2)

    return Step(lambda ours: swapped(ours[0]), lambda theirs, rows: [swapped(theirs)])


AnyStep = Step | Callable[[ModelConfig], Step]


class Row(NamedTuple):
    """A published name and those of ours that it holds; ``{n}`` in both is the number of a layer, ``{e}`` that of an expert,
    ``{q}`` that of a head of queries and ``{k}`` that of a head of keys.

    With ``{e}`` in ours alone it holds those of the first expert, then those of the second, and so on; so with heads.
    """

    theirs: str
    ours: tuple[str, ...]
    step: AnyStep = SAME
    where: Callable[[ModelConfig], bool] = lambda config: True  # which models have it


class Held(NamedTuple):
    """A row for one layer of one model."""

    theirs: str
    ours: tuple[str, ...]
    step: Step


def one(
    theirs: str, *ours: str, step: AnyStep = SAME, where: Callable[[ModelConfig], bool] = lambda config: True
) -> list[Row]:
    """A row of a table."""
    return [Row(theirs, ours, step, where)]


def both(theirs: str, *ours: str, weight: AnyStep = SAME, bias: AnyStep = SAME) -> list[Row]:
    """The rows of a weight and of its bias."""
    steps = {"weight": weight, "bias": bias}
    return [
        Row(f"{theirs}.{end}", tuple(f"{name}.{end}" for name in ours), step) for end, step in steps.items()
    ]


def rows(table: Iterable[Row], ours: Mapping[str, Tensor], config: ModelConfig) -> Iterator[Held]:
    """The rows for a model with these weights, layer by layer; what it lacks, such as biases or a head, has none."""
    for row in filter(lambda row: row.where(config), table):
        step = row.step if isinstance(row.step, Step) else row.step(config)
        for theirs, *names in _numbered((row.theirs, *row.ours), config):
            if all(name in ours for name in names):
                yield Held(theirs, tuple(names), step)


def _numbered(names: tuple[str, ...], config: ModelConfig) -> Iterator[list[str]]:
    """The names with every number of a layer in the place of {n}, and every number of an expert or of a head in that of its mark."""
    layers = range(max(config.n_layers, config.decoder_layers)) if "{n}" in names[0] else (0,)
    experts = config.feed_forward.options.get("n_experts", 0)
    counts = {"{e}": experts, "{q}": config.n_heads, "{k}": config.kv_heads}
    theirs, *ours = names
    mark = next((mark for mark in counts if mark in "".join(names)), "{e}")
    every = range(counts[mark])
    if mark not in theirs and mark in "".join(ours):
        names = (theirs, *(name.replace(mark, str(e)) for e in every for name in ours))
    for n, e in itertools.product(layers, every if mark in theirs else (0,)):
        yield [name.replace("{n}", str(n)).replace(mark, str(e)) for name in names]


def joined(table: Iterable[Row], ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our weights as a checkpoint has them."""
    found = list(rows(table, ours, config))
    assert {name for row in found for name in row.ours} == ours.keys(), "the table of the family is not whole"
    return {row.theirs: row.step.join([ours[name] for name in row.ours]) for row in found}


def pieces(row: Held, theirs: Tensor, ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What a published tensor holds of ours, by our names."""
    return zip(row.ours, row.step.split(theirs, [len(ours[name]) for name in row.ours]), strict=True)
