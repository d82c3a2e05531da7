"""Natural text as a task of short trainings, with claims and a table of their losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from polyhead.core.array_types import Ints
from polyhead_lab.registry import Claim, ResultTable, SeedValues
from polyhead_lab.short_training import Drawn, SyntheticTask
from polyhead_lab.statistics import format_mean, verdict_less
from polyhead_lab.tokens import read_docstrings

METHOD = (
    "Natural text: the docstrings of this package, of which the last tenth is held out. Decoders of 2 "
    "layers, d_model 64, 4 heads, pre-norm, predict the next byte, in batches of 16 rows of 64. Toy "
    "tasks: encoder-decoders of 2+2 layers. Cosine, 3 seeds, which share data between designs.\n\n"
)


def make_text_task(length: int = 64, rows: int = 16, train_bytes: int | None = None) -> SyntheticTask:
    """Predict the next byte of this package's docstrings, whose last tenth is held out.

    ``train_bytes``: train on the first bytes only.
    """
    text = np.frombuffer("".join(read_docstrings()).encode(), np.uint8).astype(np.int64)
    cut = len(text) * 9 // 10
    train, held_out = (partial(draw_windows, x, length) for x in (text[:cut][:train_bytes], text[cut:]))
    return SyntheticTask(256, length, train, rows, "decoder", held_out)


def draw_windows(text: Ints, length: int, rng: np.random.Generator, rows: int) -> Drawn:
    """Windows at random places: a source that no decoder reads, the bytes, and those that follow."""
    windows = text[rng.integers(0, len(text) - length, (rows, 1)) + np.arange(length + 1)]
    return windows[:, :1], windows[:, :-1], windows[:, 1:]


def make_loss_claims(
    sentence: str, source: str, losses: Mapping[str, SeedValues], better: str, worse: str, margin: float = 0.0
) -> list[Claim]:
    """A claim for natural text and one for a toy task: one loss is less than another by a margin."""
    note = f" (margin: {margin} nats)" if margin else ""
    return [
        Claim(sentence, source, f"{better} against {worse}: {format_mean(of[better])} against "
            f"{format_mean(of[worse])}{note}.", verdict_less(of[better], of[worse], margin), material)
        for material, of in losses.items()
    ]  # fmt: skip


def format_cell(values: Sequence[float]) -> str:
    """The mean and its interval, or a count with all of its digits."""
    return f"{values[0]:,.0f}" if len(values) == 1 and values[0].is_integer() else format_mean(values)


def tabulate(columns: Mapping[str, SeedValues], caption: str = "All numbers") -> ResultTable:
    """Table of means of the same rows in each column."""
    names = next(iter(columns.values()))
    rows = [(name, *(format_cell(of[name]) for of in columns.values())) for name in names]
    return ResultTable(caption, ("design", *columns), rows)
