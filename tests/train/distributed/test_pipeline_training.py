"""A training in a pipeline equals that of one process: losses, weights, files, resumed on any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.test_process_group import KINDS

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5")]
TASKS = [kind for kind in KINDS if kind != "replaced-token-detection"]


def piped(place: Path, kind: str, out: str, world: int = 2, **parallel: Any) -> dict[str, Any]:
    """What comes of it in a pipeline of two processes."""
    recipe = recipe_of(place, kind, out, parallel={"pipeline": 2, "micro_batches": 4, **parallel})
    return trained(recipe, world)


@pytest.mark.parametrize("kind", ["translation"])
def test_a_task_learns_the_same(kind: str, place: Path) -> None:
    alone = trained(recipe_of(place, kind, f"piped-{kind}-1"), 1)
    assert_same(alone, piped(place, kind, f"piped-{kind}-2"))
