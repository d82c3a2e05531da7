"""Tests of train/distributed/sync_statistics.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


@pytest.mark.acceptance("G2")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("translation", {}),
        ("masked-lm", {}),
        ("classification", {}),
        # two rows at most, so the third rank has nothing, and the second now something and now nothing
        ("translation", {"max_tokens": 26, "accumulate": 2}),
        pytest.param(
            "translation",
            {"max_tokens": 26, "accumulate": 2, "recompute": "blocks"},
            marks=pytest.mark.slow,  # tests/nn/test_recompute.py has the fast one
        ),
        ("translation", {"freeze": ["encoder"]}),  # whose statistics go on, and nothing goes back to them
    ],
    ids=["translation", "masked-lm", "classification", "few", "recomputed", "frozen"],
)
def test_norms_over_the_batch_count_all_of_it(kind: str, changes: dict[str, Any], place: Path) -> None:
    """Forward and backward, whatever part of it a rank has."""
    name, norm = f"batchnorm-{kind}-{len(changes)}-{'freeze' in changes}", {"norm": "batchnorm"}
    alone = trained(recipe_of(place, kind, f"{name}-1", model=norm, **changes), 1)
    means = [w for name, w in alone["final"].items() if name.endswith("running_mean")]
    assert means and all(w.abs().max() > 0 for w in means)
    for world in (2, 3):
        assert_same(alone, trained(recipe_of(place, kind, f"{name}-{world}", model=norm, **changes), world))


@pytest.mark.acceptance("G2")
@pytest.mark.parametrize(
    ("kind", "world", "changes"),
    [
        ("translation", 3, {"max_tokens": 26, "accumulate": 2}),  # the third rank has nothing
        ("language-model", 2, {}),
    ],
    ids=["few", "language-model"],
)
def test_experts_are_balanced_over_the_batch(
    kind: str, world: int, changes: dict[str, Any], place: Path
) -> None:
    """The bias that makes loads even learns from the tokens of all ranks, and the curve is that of one."""
    experts = {"feed_forward": {"name": "moe", "n_experts": 4, "top_k": 2}}
    alone = trained(recipe_of(place, kind, f"experts-{kind}-1", model=experts, **changes), 1)
    assert all(w.any() for name, w in alone["final"].items() if name.endswith(".balance"))
    found = trained(recipe_of(place, kind, f"experts-{kind}-{world}", model=experts, **changes), world)
    assert_same(alone, found)
    curves = [[row["loss"] for row in run["metrics"]] for run in (alone, found)]
    assert curves[0] == pytest.approx(curves[1], rel=0, abs=1e-6)
