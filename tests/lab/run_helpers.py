import pytest

from polyhead.lab.registry import EXPERIMENTS
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
def toy(monkeypatch):
    """A catalogue of two experiments that measure nothing."""
    EXPERIMENTS.names()
    monkeypatch.setattr(EXPERIMENTS, "_parts", {})
    seen = []

    @EXPERIMENTS.register("toy")
    def toy(bench):
        """What a toy does."""
        seen.append(bench)
        bench.info("half of it is done")
        return ExperimentResult(
            "A toy", "Why?", [Claim("It works.", "Me, today", f"seed {bench.seed}", None)]
        )

    @EXPERIMENTS.register("yo-yo")
    def yoyo(bench):
        """Up and down."""
        seen.append(bench)
        return ExperimentResult("A yo-yo", "Why?", [Claim("It goes up.", "Me", "it went down", False)])

    return seen
