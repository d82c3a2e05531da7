"""The experiments by name, and the conditions one is run under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from polyhead.lab.result import Result
from polyhead.registry import Registry

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Where an experiment is run: how large, from which seed, and who hears how it goes."""

    seed: int = 1
    quick: bool = False
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)

    def size(self, full: T, quick: T) -> T:
        """A size of the experiment: the full one, or the one that only shows that it runs."""
        return quick if self.quick else full

    def seeds(self, n: int) -> list[int]:
        """n seeds for repetitions; two in a quick run, the least that has a spread."""
        return [self.seed + i for i in range(self.size(n, min(n, 2)))]


Experiment = Callable[[Bench], Result]

LAB: Registry[Experiment] = Registry("experiment", "polyhead.lab")


def question(name: str) -> str:
    """What an experiment is about: the first line of its docstring."""
    return (LAB.get(name).__doc__ or "").strip().splitlines()[0]
