"""Fully sharded training equals that of one process: losses, weights, files; each rank holds its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.test_process_group import KINDS
from tests.train.several import together
from tests.train.test_loss_module import NextTokens

from polyhead.config.config_sections import ParallelConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.models import build
from polyhead.nn.state import named_state
from polyhead.train.distributed.local_tensor import get_local, get_whole
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.loop import train_step
from polyhead.train.train_state import TrainState

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5")]
SIZES = {
    "kind": "decoder", "vocab_size": 24, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 8,
    "dropout": 0.0,
}  # fmt: skip
STEPS = 3
ADAM = {"name": "adamw", "eps": 1e-3}
DESIGNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the model, and of the training
    "tied": ({}, {}),
    "own head": ({"tie_embeddings": "none"}, {"ema": 0.9}),
    "shared layers": ({"share_layers": True}, {}),
    "experts": ({"feed_forward": {"name": "moe", "n_experts": 4}}, {}),
    "batch norm": ({"norm": {"name": "batchnorm"}}, {}),
    "modern": (
        {
            "position": {"name": "rope"},
            "n_kv_heads": 1,
            "norm": {"name": "rmsnorm"},
            "feed_forward": "swiglu",
        },
        {"clip_norm": 0.1},
    ),
    "accumulation": ({}, {"accumulate": 2, "clip_norm": 0.0}),
    "recomputation": ({}, {"recompute": "blocks"}),
    "adafactor": ({}, {"optimizer": {"name": "adafactor", "weight_decay": 0.1}, "ema": 0.9}),
    "muon": ({}, {"optimizer": {"name": "muon"}}),
    "frozen": ({}, {"freeze": ["stack.layers.0"]}),
    "lora": ({}, {"lora": {"r": 2, "target_modules": ["q_proj", "v_proj"]}}),
}


def learned(name: str, ranks: ProcessGroup, parallel: dict[str, Any]) -> dict[str, Any]:
    """Losses and norms of some steps, all weights at the end, and the numbers that this rank has of them."""
    model, train = DESIGNS[name]
    config = TrainConfig.model_validate(
        {"steps": 9, "optimizer": ADAM, "lr": 1e-2, "precision": "fp32", "parallel": parallel} | train
    )
    training = TrainState(build(ModelConfig.model_validate(SIZES | model), 1).double(), config, 16, 9)
    task, found = NextTokens(), []
    training.split(task, ranks, config)
    for step in range(STEPS):
        training.progress.step += 1
        torch.manual_seed(step)
        rows = [[0, 2, 1, 4][: 3 + step], [3, 1, 4, 0]][: config.accumulate]
        parts = [some[ranks.place.data_rank :: ranks.place.data_size] for some in rows]
        train_step(training, task, [task.collate(part) for part in parts], config, ranks)
        sums = training.progress.sums
        found.append([sums.total, sums.norm])
    weights, averages = named_state(training.model), training.ema.weights if training.ema else {}
    states = [
        [value for value in entry.values() if value.ndim]
        for optimizer in training.optimizers
        for entry in optimizer.state_dict()["state"].values()
    ]
    return {
        "losses": found,
        "weights": {key: get_whole(w.detach()).flatten().tolist() for key, w in weights.items()},
        "ema": {key: get_whole(w).flatten().tolist() for key, w in averages.items()},
        "size": sum(get_local(p).numel() for p in training.model.parameters()),
        "state": sum(get_local(value).numel() for values in states for value in values),
    }


def assert_learned_alike(
    names: list[str], world: int, parallel: dict[str, Any], near: float = 1e-6
) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Losses, norms, weights and averages are those of one process; what that and each rank learned."""

    def work(ranks: ProcessGroup) -> list[dict[str, Any]]:
        ranks.form_mesh(ParallelConfig.model_validate(parallel), "cpu")
        return [learned(name, ranks, parallel) for name in names]

    ends = together(world, work, timeout=60)
    assert [end.code for end in ends] == [0] * world, ends
    found = {name: (learned(name, SINGLE_PROCESS, {}), [end.said[i] for end in ends])
        for i, name in enumerate(names)}  # fmt: skip
    for name, (alone, ranks) in found.items():
        for ours in ranks:
            assert len(ours["losses"]) == STEPS and min(map(min, ours["losses"])) > 0
            for pair, wanted in zip(ours["losses"], alone["losses"], strict=True):
                assert pair == pytest.approx(wanted, rel=near), name
            for group in ("weights", "ema"):
                assert ours[group].keys() == alone[group].keys()
                for key, weight in alone[group].items():
                    assert ours[group][key] == pytest.approx(weight, abs=near), (name, group, key)
    return found


def compare(names: list[str], world: int, parallel: dict[str, Any], near: float = 1e-6) -> None:
    """All that is learned, and that each rank has its share."""
    shards = parallel["shard"]
    for name, (alone, ranks) in assert_learned_alike(names, world, parallel, near).items():
        sizes = [rank["size"] for rank in ranks]
        assert sum(sizes) == alone["size"] * world // shards, name
        # every dimension of these models can be divided by the ranks, but those of LoRA
        if name != "lora":
            assert max(sizes) == pytest.approx(alone["size"] / shards, rel=0.01), name
            if name not in ("adafactor", "frozen"):
                states = [rank["state"] for rank in ranks]
                assert max(states) == pytest.approx(alone["state"] / shards, rel=0.01), name


def test_designs_learn_as_one_process() -> None:
    """In fp64, but for the losses; with the states of one process, cut into equal parts."""
    compare(list(DESIGNS), 2, {"shard": 2})


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        (4, {"shard": 4}),
        (4, {"shard": 2, "replicate": 2}),
        pytest.param(3, {"shard": 3}, marks=pytest.mark.slow),
    ],
    ids=["four", "hybrid", "three"],
)
def test_other_meshes_learn_as_one_process(world: int, parallel: dict[str, Any]) -> None:
    compare(["own head", "accumulation"] if world == 4 else ["lora"], world, parallel)


def test_gradients_summed_in_bf16_are_near(place: Path) -> None:
    parallel = {"shard": 2, "reduce_dtype": "bf16"}
    with pytest.raises(AssertionError):
        compare(["tied"], 2, parallel)
    compare(["tied"], 2, parallel, near=1e-2)


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_every_task_learns_the_same(kind: str, place: Path) -> None:
    alone = trained(recipe_of(place, kind, f"sharded-{kind}-1"), 1)
    assert_same(alone, trained(recipe_of(place, kind, f"sharded-{kind}-2", parallel={"shard": 2}), 2))


@pytest.mark.acceptance("G6")
def test_a_sharded_run_goes_on_with_another_number(place: Path) -> None:
    name = "sharded-on"
    whole = trained(recipe_of(place, "language-model", f"{name}-whole"), 1)
    trained(recipe_of(place, "language-model", name, steps=4, parallel={"shard": 2}), 2)
    assert_same(whole, trained(recipe_of(place, "language-model", name), 1, resume=True))
