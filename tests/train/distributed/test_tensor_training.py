"""Trainings split over tensor ranks: curve, checkpoint, resumption and final evaluation of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.test_process_group import KINDS
from tests.train.distributed.test_shard_model import DESIGNS, assert_learned_alike
from tests.train.several import together

from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_task_learns_the_same(kind: str, place: Path) -> None:
    one = trained(recipe_of(place, kind, f"tensor-{kind}-1"), 1)
    assert_same(one, trained(recipe_of(place, kind, f"tensor-{kind}-2", parallel={"tensor": 2}), 2))


def test_a_split_run_continues_with_another_number(place: Path) -> None:
    name = "tensor-on"
    whole = trained(recipe_of(place, "language-model", f"{name}-whole"), 1)
    trained(recipe_of(place, "language-model", name, steps=4, parallel={"tensor": 2}), 2)
    assert_same(whole, trained(recipe_of(place, "language-model", name), 1, resume=True))


def test_a_design_that_cannot_be_split_is_refused(place: Path) -> None:
    model: dict[str, Any] = {"n_kv_heads": 1}
    recipe = recipe_of(place, "language-model", "tensor-refused", model=model, parallel={"tensor": 2})

    def work(ranks: ProcessGroup) -> None:
        run_training(recipe, ranks=ranks)

    first, other = together(2, work, timeout=60)
    message = (
        "train.parallel (tensor 2): 1 key/value heads cannot be divided by 2: tensor must divide their number"
    )
    assert (first.code, first.said) == (2, message) and other.code in (2, RANK_LOST)


def test_optimizers_and_other_meshes_learn_as_one_process() -> None:
    names = [name for name in DESIGNS if name != "modern"]  # that has one key/value head
    assert_learned_alike(names, 2, {"tensor": 2}, near=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("data", [{"shard": 2}, {"replicate": 2}], ids=str)
def test_two_dimensions_learn_as_one_process(data: dict[str, int]) -> None:
    names = [name for name in DESIGNS if name != "modern"]
    assert_learned_alike(names, 4, data | {"tensor": 2}, near=1e-7)


@pytest.mark.slow
def test_an_encoder_decoder_is_split_in_two_dimensions(place: Path) -> None:
    name, parallel = "tensor-2d", {"tensor": 2, "shard": 2}
    one = trained(recipe_of(place, "translation", f"{name}-1"), 1)
    assert_same(one, trained(recipe_of(place, "translation", f"{name}-4", parallel=parallel), 4))
