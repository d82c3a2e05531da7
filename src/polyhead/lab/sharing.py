"""Pages that the beams or the samples of a text have in common, seen step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from polyhead.cache.paged import PagedCache
from polyhead.cache.pages import Usage
from polyhead.run import Run


class Watched(PagedCache):
    """A paged cache that keeps what it held at every step; chosen by its place, polyhead.lab.sharing:Watched."""

    seen: ClassVar[list[Usage]] = []

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        super().begin(rows, pos)
        Watched.seen.append(self.usage())


class Way(NamedTuple):
    """A way to decode in which several sequences have a beginning in common."""

    n: int
    what: str  # "beams" or "samples"

    def __str__(self) -> str:
        return f"{self.n} {self.what}"


class Saved(NamedTuple):
    """Shares of the pages that as many rows would hold if they shared nothing, and the block."""

    peak: float  # of the most ever held
    mean: float  # over all steps
    block: int


def ways(run: Run) -> list[Way]:
    """What a model decodes in: a translator with beams, a language model with either."""
    beams = [Way(5, "beams")]
    return beams if run.config.kind == "encoder-decoder" else [*beams, Way(4, "samples"), Way(8, "samples")]


def saved(run: Run, text: str, way: Way, *, block: int | None = None, new_tokens: int = 60) -> Saved:
    """What sharing saves while one text is translated, or gone on from by ``new_tokens``; block None: as it is chosen."""
    Watched.seen.clear()
    rest: dict[str, Any] = {"cache": {"name": "polyhead.lab.sharing:Watched", "block": block}}
    if run.config.kind != "encoder-decoder":
        rest["max_new_tokens"] = new_tokens
    if way.what == "samples":
        run.generate([text], n=way.n, **rest)
    else:
        run.hypotheses([text], beam_size=way.n, **rest)
    return from_usages([usage for usage in Watched.seen if usage.unshared])


def from_usages(seen: Sequence[Usage]) -> Saved:
    """What sharing saved, from what the cache held at every step."""
    peak = 1 - max(usage.used for usage in seen) / max(usage.unshared for usage in seen)
    mean = 1 - sum(usage.used for usage in seen) / sum(usage.unshared for usage in seen)
    return Saved(peak, mean, seen[0].block)
