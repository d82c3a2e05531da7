import pytest

from polyhead_lab.registry import EXPERIMENTS, Claim, ExperimentResult

QUICK = ("coreference", "linear", "parallelism", "scaling")  # whose quick runs take a second
SLOW = ("activations", "caches", "embedding", "heads", "norms")
SLOW += ("batchnorm", "head-diversity", "model-size", "position-cost", "residual", "similarity", "zero-shot")
SLOW += ("paging", "positions", "prenorm", "recurrence", "tied-qkv", "tokens")
NAMES = sorted(QUICK + SLOW)


@pytest.fixture
def toy(monkeypatch):
    """Registers two experiments in place of the package's; the contexts that they are run with."""
    EXPERIMENTS.names()
    monkeypatch.setattr(EXPERIMENTS, "_parts", {})
    contexts = []

    @EXPERIMENTS.register("toy")
    def toy(context):
        """What a toy does."""
        contexts.append(context)
        context.info("half of it is done")
        claim = Claim("It works.", "Me, today", f"seed {context.seed}", None)
        return ExperimentResult("A toy", "Why?", [claim])

    @EXPERIMENTS.register("yo-yo")
    def yoyo(context):
        """Up and down."""
        contexts.append(context)
        return ExperimentResult("A yo-yo", "Why?", [Claim("It goes up.", "Me", "it went down", False)])

    return contexts
