"""Places in a mesh of processes, and meshes and trainings that are refused."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import small_recipe

from polyhead.config.config_sections import ParallelConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.train.distributed.mesh import MeshShape, RankPlace, resolve_mesh_shape
from polyhead.train.distributed.parallel_check import find_obstacle
from polyhead.train.distributed.process_group import SINGLE_PROCESS

SHAPES = [
    MeshShape(), MeshShape(replicate=3), MeshShape(shard=4), MeshShape(replicate=2, shard=2, tensor=2),
    MeshShape(shard=2, context=2), MeshShape(pipeline=2, replicate=2, shard=3), MeshShape(2, 2, 2, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_share_rows_labels_and_gradients_once(shape: MeshShape) -> None:
    places = [RankPlace(shape, rank) for rank in range(prod(shape))]
    # the last dimension is innermost: neighbours in it have consecutive numbers
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    for place in places:
        assert sum(at * stride for at, stride in zip(place.coordinates, strides, strict=True)) == place.rank
    # rows: each shard of a batch is on as many ranks as share the work of one
    shards = [place.data_rank for place in places]
    group = shape.pipeline * shape.context * shape.tensor
    assert sorted(shards) == sorted(list(range(shape.replicate * shape.shard)) * group)
    # labels: every part of every shard counts once
    counted = [(place.data_rank, place.coordinates.context) for place in places if place.counts]
    assert len(set(counted)) == len(counted) == shape.replicate * shape.shard * shape.context
    assert sorted(place.reduce_rank for place in places if place.counts) == list(range(len(counted)))
    # dropout: apart, but for the ranks of one tensor group, which hold the same hidden states
    for one in places:
        for other in places:
            same = one.coordinates._replace(tensor=0) == other.coordinates._replace(tensor=0)
            assert (one.seed_rank == other.seed_rank) == same


@pytest.mark.parametrize(
    ("parallel", "world", "shape"),
    [
        ({}, 4, MeshShape(replicate=4)),
        ({"shard": 2}, 6, MeshShape(replicate=3, shard=2)),
        ({"replicate": 2, "shard": 2}, 4, MeshShape(replicate=2, shard=2)),
        ({"tensor": 2, "pipeline": 2, "context": 2}, 8, MeshShape(pipeline=2, context=2, tensor=2)),
    ],
)
def test_the_rest_of_the_processes_replicates(parallel: dict[str, Any], world: int, shape: MeshShape) -> None:
    assert resolve_mesh_shape(ParallelConfig.model_validate(parallel), world) == shape


@pytest.mark.parametrize(
    ("parallel", "world", "message"),
    [
        (
            {"shard": 2},
            1,
            r"\(shard 2\) needs a multiple of 2 processes, but .* is 1; .* --processes 2",
        ),
        (
            {"shard": 2, "tensor": 2},
            6,
            r"\(shard 2 x tensor 2\) needs a multiple of 4 processes, .* is 6",
        ),
        ({"replicate": 3}, 2, r"\(replicate 3\) needs 3 processes, but .* is 2; start with --processes 3"),
    ],
)
def test_a_mesh_of_another_size_is_refused(parallel: dict[str, Any], world: int, message: str) -> None:
    config = ParallelConfig.model_validate(parallel)
    with pytest.raises(UserError, match=message):
        resolve_mesh_shape(config, world)
    if world == 1:
        with pytest.raises(UserError, match=message):
            SINGLE_PROCESS.form_mesh(config, "cpu")


@pytest.mark.parametrize(
    ("train", "shape", "reason"),
    [
        ({"eval_bleu": True}, MeshShape(shard=2), "train.eval_bleu translates"),
        ({"best_metric": "chrf"}, MeshShape(tensor=2), "train.best_metric=chrf translates"),
        ({"precision": "fp16"}, MeshShape(shard=2), "the loss scale of train.precision=fp16"),
        ({}, MeshShape(pipeline=2, tensor=2), "not with context or tensor"),
        (
            {"parallel": {"schedule": "zbv"}},
            MeshShape(pipeline=2, shard=2),
            "schedule=zbv; set gpipe",
        ),
        ({"parallel": {"checkpoint": "sharded"}}, MeshShape(replicate=2), "all have the whole: set whole"),
        ({}, MeshShape(shard=2), None),
        ({}, MeshShape(replicate=2), None),
        ({"eval_bleu": True, "precision": "fp16"}, MeshShape(replicate=2), None),
    ],
)
def test_trainings_that_cannot_be_split_are_refused(
    train: dict[str, Any], shape: MeshShape, reason: str | None, tmp_path: Path
) -> None:
    recipe: Recipe = small_recipe(tmp_path, "refused", **train)
    found = find_obstacle(recipe, recipe.model.with_vocabulary(300, ()), shape)
    assert found is None if reason is None else found is not None and reason in found
