"""Fully sharded training equals that of one process: losses, weights, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.test_process_group import KINDS

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_learns_the_same(kind: str, place: Path) -> None:
    alone = trained(recipe_of(place, kind, f"sharded-{kind}-1"), 1)
    assert_same(alone, trained(recipe_of(place, kind, f"sharded-{kind}-2", parallel={"shard": 2}), 2))
