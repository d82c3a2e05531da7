"""Cache blocks that the beams or the samples of a text share, recorded at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from polyhead.cache.block_manager import BlockStats
from polyhead.cache.paged import PagedCache
from polyhead.run.run import Run


class RecordingPagedCache(PagedCache):
    """Paged cache that records its block statistics at every step.

    Selected by its import path: polyhead.lab.page_sharing:RecordingPagedCache.
    """

    history: ClassVar[list[BlockStats]] = []

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        super().prepare_step(rows, pos)
        RecordingPagedCache.history.append(self.block_stats())


class SharingSetup(NamedTuple):
    """A decoding setup in which several sequences share a prefix."""

    n: int
    kind: str  # "beams" or "samples"

    def __str__(self) -> str:
        return f"{self.n} {self.kind}"


class SharingSavings(NamedTuple):
    """Saved shares of the blocks that as many rows would hold without sharing, and the block size."""

    peak: float  # share at the peak
    mean: float  # share over all steps
    block_size: int


def list_setups(run: Run) -> list[SharingSetup]:
    """Decoding setups of a model: beams for a translator, beams and samples for a language model."""
    beams = [SharingSetup(5, "beams")]
    return (
        beams
        if run.config.kind == "encoder-decoder"
        else [*beams, SharingSetup(4, "samples"), SharingSetup(8, "samples")]
    )


def measure_sharing(
    run: Run, text: str, setup: SharingSetup, *, block_size: int | None = None, new_tokens: int = 60
) -> SharingSavings:
    """Savings from sharing while one text is translated, or continued by ``new_tokens`` tokens.

    ``block_size`` None: the cache chooses it.
    """
    RecordingPagedCache.history.clear()
    rest: dict[str, Any] = {
        "cache": {"name": "polyhead.lab.page_sharing:RecordingPagedCache", "block_size": block_size}
    }
    if run.config.kind != "encoder-decoder":
        rest["max_new_tokens"] = new_tokens
    if setup.kind == "samples":
        run.generate([text], n=setup.n, **rest)
    else:
        run.hypotheses([text], beam_size=setup.n, **rest)
    return from_usages([usage for usage in RecordingPagedCache.history if usage.unshared_blocks])


def from_usages(usages: Sequence[BlockStats]) -> SharingSavings:
    """Savings from the block statistics of every step."""
    peak = 1 - max(usage.used_blocks for usage in usages) / max(usage.unshared_blocks for usage in usages)
    mean = 1 - sum(usage.used_blocks for usage in usages) / sum(usage.unshared_blocks for usage in usages)
    return SharingSavings(peak, mean, usages[0].block_size)
