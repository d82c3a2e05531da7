"""What a comparison must know of a task: what it measures, and how the models of the task are run.

Shapes: B rows, T tokens, N units that a resample draws, K statistics of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from polyhead.compare.significance import Floats, Score, mean_of
from polyhead.errors import UserError
from polyhead.recipe import Recipe
from polyhead.registry import Registry
from polyhead.run import Run

Found = dict[str, Any]
"""What JSON can write."""


class Measure(NamedTuple):
    """A measure of quality: its names, how sums of statistics become its value, and how it is shown."""

    name: str  # in result.json and in the rows
    column: str  # over its column: "BLEU"
    title: str  # in charts: "validation loss"
    score: Score  # sums (R, K) -> values (R,)
    less_is_better: bool
    digits: int  # after the point
    ends: int  # after the point, in intervals and spreads
    of_tokens: bool = False  # its units are cut or counted by tokens: no pairs where tokenizers differ
    across: bool = True  # whether its values compare where tokenizers differ


LOSS_OF_TOKENS = Measure("loss", "loss", "validation loss", mean_of, True, 3, 3, of_tokens=True, across=False)


def measured_split(recipe: Recipe) -> str:
    """The text that all but the loss is measured on: the test text, if there is one."""
    return "test" if recipe.data.test else "valid"


class Words(NamedTuple):
    """What the page says of this task in its sentences."""

    unit: str  # that a resample draws: "sentences"
    flops: str  # that are counted as those of a token
    decoding: str = ""  # how its speed was measured, where anything is decoded
    each: str = "token"  # what is predicted, and so counted
    given: bool = False  # whether the units are those of the text, and not cut by the design


class Piece(NamedTuple):
    """A batch that is only measured."""

    features: Callable[[Any], Tensor]  # of a model: what its head reads
    tokens: int  # that it predicts; texts, where these have classes
    # for each stack of the model, which places (B, T) are tokens; None: all
    real: Mapping[str, Tensor | None]
    head: str = "head"  # the part of the model that reads them


class Compared(Protocol):
    """A task by name. ``task`` below is what the training task of the same name opened."""

    # the loss first; the second is what designs with different tokens are sorted by
    measures: tuple[Measure, ...]
    words: Words

    def labels(self, recipe: Recipe) -> Sequence[str]:
        """The classes that its models tell apart."""
        ...

    def tokens_per_step(self, task: Any) -> float:
        """Tokens, or texts, that a batch of training predicts: the mean over an epoch."""
        ...

    def typical(self, task: Any) -> Piece:
        """A batch of ordinary length; what its forward pass costs is what a token costs."""
        ...

    def pieces(self, task: Any) -> Iterator[Piece]:
        """The validation text."""
        ...

    def quality(self, run: Run, recipe: Recipe, task: Any) -> tuple[Found, Found]:
        """``split``, ``signatures`` and the value of every measure; and what ``statistics`` needs later."""
        ...

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """For every measure what its score sums up, unit by unit: (N, K)."""
        ...

    def decode_speed(self, run: Run, recipe: Recipe) -> float | None:
        """Tokens a second of decoding; None where nothing is decoded."""
        ...

    def memory(self, run: Run) -> Any:
        """What a decoder reads besides its own output, of the shortest text; None where it reads nothing, or there is none."""
        ...


COMPARED: Registry[Any] = Registry("task", "polyhead.compare.tasks")


def compared(task: str) -> Compared:
    """How designs of a task are compared; a UserError where nobody has said that yet."""
    known = COMPARED.names()
    if task not in known:
        raise UserError(f"task is {task!r}; designs are compared by these tasks: {', '.join(known)}")
    part: Compared = COMPARED.get(task)()
    return part
