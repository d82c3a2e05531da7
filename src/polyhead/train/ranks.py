"""The processes that make every update together, seen from one of them: alone here, several in ``several.py``.

An update is the same on any number of ranks: its rows are dealt out, counts, losses and gradients are summed over all
ranks before anything is divided. So is an evaluation, whose batches are dealt out. The first rank alone writes and
speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Does a work on each of some things: ``map``, or that of several ranks."""


@contextmanager
def threads(n: int | None) -> Iterator[None]:
    """So many CPU threads within, or those there are; as many as before behind it."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Deals(Protocol):
    """What knows the parts of a batch: a task."""

    def deal(self, rows: Any, n: int) -> list[Any]: ...


class Ranks(Protocol):
    """All that training asks of the others."""

    rank: int
    world: int
    again: tuple[str, ...]  # options of ``polyhead train`` that start as many again

    def use_threads(self, wanted: int | None) -> None:
        """CPU threads: so many, or all, dealt out to the processes of this machine."""
        ...

    def share(self, task: Deals, rows: Any) -> list[Any]:
        """The part of a batch that is this rank's; none where there are fewer rows than ranks."""
        ...

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over all ranks; the same bits on each."""
        ...

    def partaking(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it all learn from their parts of one batch, or from nothing, and count what a batch norm counts of all."""
        ...

    def summing(self, model: nn.Module) -> AbstractContextManager[None]:
        """Behind the context gradients are summed over all ranks; within it they begin to travel."""
        ...

    def tell(self, work: Callable[[], T]) -> T:
        """What the work of the first rank gives, of JSON's types. The others wait, as long as it lives."""
        ...

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """What the work gives of each item, of JSON's types, in their order and on all ranks, which take them in turn."""
        ...

    def interrupt(self) -> None:
        """A signal that ends work at once, without agreement, has come here: pass it on to all."""
        ...

    def in_turn(self, work: Callable[[], T]) -> T:
        """Everyone's own work: the first rank's before all, then one on each machine, then the rest.

        What is made once and then found is so made once, whether or not machines see the same files.
        """
        ...

    def copy(self, tensors: Iterable[Tensor]) -> None:
        """Fill tensors with those of the first rank."""
        ...


class Alone:
    """One process."""

    rank, world = 0, 1
    again: tuple[str, ...] = ()

    def use_threads(self, wanted: int | None) -> None:
        if wanted:
            torch.set_num_threads(wanted)

    def share(self, task: Deals, rows: Any) -> list[Any]:
        return [rows]

    def sum(self, *numbers: float) -> list[float]:
        return list(numbers)

    def partaking(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def summing(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def tell(self, work: Callable[[], T]) -> T:
        return work()

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        return map(work, items)

    def interrupt(self) -> None:
        pass

    def in_turn(self, work: Callable[[], T]) -> T:
        return work()

    def copy(self, tensors: Iterable[Tensor]) -> None:
        pass


ALONE = Alone()
