"""Tests of train/distributed/sync_batchnorm.py."""

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
