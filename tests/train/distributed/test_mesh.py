from itertools import product
from math import prod

import pytest
from tests.train.conftest import small_recipe, user_error

from polyhead.config.config_sections import ParallelConfig
from polyhead.train.distributed.mesh import MeshShape, RankPlace, resolve_mesh_shape
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.strategies.parallelize import find_obstacle

SIZES = [{}, {"replicate": 3}, {"shard": 4}, {"replicate": 2, "shard": 2, "tensor": 2}]
SIZES += [{"shard": 2, "context": 2}, {"pipeline": 2, "replicate": 2, "shard": 3}]
SHAPES = [*(MeshShape(**sizes) for sizes in SIZES), MeshShape(2, 2, 2, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_share_rows_labels_and_gradients_once(shape):
    places = [RankPlace(shape, rank) for rank in range(prod(shape))]
    # the last dimension is innermost: its ranks have consecutive numbers
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    for place in places:
        assert sum(i * stride for i, stride in zip(place.coordinates, strides, strict=True)) == place.rank
    # rows: each shard of a batch is on as many ranks as share its work
    group_size = shape.pipeline * shape.context * shape.tensor
    n_shards = shape.replicate * shape.shard
    assert sorted(place.data_rank for place in places) == sorted(list(range(n_shards)) * group_size)
    # labels: every part of every shard counts once
    parts = [(place.data_rank, place.coordinates.context) for place in places if place.counts]
    assert len(set(parts)) == len(parts) == n_shards * shape.context
    assert sorted(place.reduce_rank for place in places if place.counts) == list(range(len(parts)))
    # dropout: seeds differ but in a tensor group, whose ranks hold the same hidden states
    for a, b in product(places, places):
        is_same_group = a.coordinates._replace(tensor=0) == b.coordinates._replace(tensor=0)
        assert (a.seed_rank == b.seed_rank) == is_same_group


@pytest.mark.parametrize(
    ("parallel", "world_size", "shape"),
    [
        ({}, 4, MeshShape(replicate=4)),
        ({"shard": 2}, 6, MeshShape(replicate=3, shard=2)),
        ({"replicate": 2, "shard": 2}, 4, MeshShape(replicate=2, shard=2)),
        ({"tensor": 2, "pipeline": 2, "context": 2}, 8, MeshShape(pipeline=2, context=2, tensor=2)),
    ],
)
def test_replicate_is_derived_from_world_size(parallel, world_size, shape):
    assert resolve_mesh_shape(ParallelConfig.model_validate(parallel), world_size) == shape


@pytest.mark.parametrize(
    ("parallel", "world_size", "message"),
    [
        (
            {"shard": 2},
            1,
            r"\(shard 2\) needs a multiple of 2 processes, but .* is 1; "
            "start with the shell command polyhead train RECIPE --processes 2$",
        ),
        ({"shard": 2, "tensor": 2}, 6, r"\(shard 2 x tensor 2\) needs a multiple of 4 processes, .* is 6"),
        ({"replicate": 3}, 2, r"\(replicate 3\) needs 3 processes, but .* is 2; start with .* --processes 3"),
    ],
)
def test_mesh_of_another_world_size_is_refused(parallel, world_size, message):
    config = ParallelConfig.model_validate(parallel)
    with user_error(message):
        resolve_mesh_shape(config, world_size) if world_size > 1 else SINGLE_PROCESS.form_mesh(config, "cpu")


@pytest.mark.parametrize(
    ("train", "shape", "reason"),
    [
        ({"eval_bleu": True}, MeshShape(shard=2), "train.eval_bleu translates"),
        ({"best_metric": "chrf"}, MeshShape(tensor=2), "train.best_metric=chrf translates"),
        ({"precision": "fp16"}, MeshShape(shard=2), "the loss scale of train.precision=fp16"),
        ({}, MeshShape(pipeline=2, tensor=2), "not with context or tensor"),
        ({"parallel": {"schedule": "zbv"}}, MeshShape(pipeline=2, shard=2), "schedule=zbv; set gpipe"),
        ({"parallel": {"checkpoint": "sharded"}}, MeshShape(replicate=2), "all have the whole: set whole"),
        ({}, MeshShape(shard=2), None),
        ({}, MeshShape(replicate=2), None),
        ({"eval_bleu": True, "precision": "fp16"}, MeshShape(replicate=2), None),
    ],
)
def test_training_that_cannot_be_partitioned_is_refused(train, shape, reason, tmp_path):
    recipe = small_recipe(tmp_path, "refused", **train)
    obstacle = find_obstacle(recipe, recipe.model.with_vocabulary(300, ()), shape)
    assert obstacle is None if reason is None else reason in (obstacle or "")
