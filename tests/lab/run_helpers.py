"""Shared by the tests of run."""

from __future__ import annotations

import pytest

from polyhead.lab.registry import EXPERIMENTS, LabContext
from polyhead.lab.result import Claim, ExperimentResult

NAMES = (
    "activations",
    "caches",
    "embedding",
    "heads",
    "linear",
    "norms",
    "paging",
    "parallelism",
    "positions",
    "prenorm",
    "recurrence",
    "scaling",
    "tied-qkv",
    "tokens",
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[LabContext]:
    """A catalogue of two experiments that measure nothing."""
    EXPERIMENTS.names()
    monkeypatch.setattr(EXPERIMENTS, "_parts", {})
    seen: list[LabContext] = []

    @EXPERIMENTS.register("toy")
    def toy(bench: LabContext) -> ExperimentResult:
        """What a toy does."""
        seen.append(bench)
        bench.info("half of it is done")
        return ExperimentResult(
            "A toy", "Why?", [Claim("It works.", "Me, today", f"seed {bench.seed}", None)]
        )

    @EXPERIMENTS.register("yo-yo")
    def yoyo(bench: LabContext) -> ExperimentResult:
        """Up and down."""
        seen.append(bench)
        return ExperimentResult("A yo-yo", "Why?", [Claim("It goes up.", "Me", "it went down", False)])

    return seen
