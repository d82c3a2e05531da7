from typing import Any

import pytest
import torch
from tests.train.distributed.rank_runs import TASKS, assert_same_run, recipe_of, train
from tests.train.ranks import outputs_of
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

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5")]
SIZES = {"vocab_size": 24, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 8}
SIZES |= {"kind": "decoder", "dropout": 0.0}
STEPS = 3
ADAM = {"name": "adamw", "eps": 1e-3}
MODERN = {
    "position": {"name": "rope"},
    "n_kv_heads": 1,
    "norm": {"name": "rmsnorm"},
    "feed_forward": "swiglu",
}
DESIGNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the model, and of the training
    "tied": ({}, {}),
    "own head": ({"tie_embeddings": "none"}, {"ema": 0.9}),
    "shared layers": ({"share_layers": True}, {}),
    "experts": ({"feed_forward": {"name": "moe", "n_experts": 4}}, {}),
    "batch norm": ({"norm": {"name": "batchnorm"}}, {}),
    "modern": (MODERN, {"clip_norm": 0.1}),
    "accumulation": ({}, {"accumulate": 2, "clip_norm": 0.0}),
    "recomputation": ({}, {"recompute": "blocks"}),
    "adafactor": ({}, {"optimizer": {"name": "adafactor", "weight_decay": 0.1}, "ema": 0.9}),
    "muon": ({}, {"optimizer": {"name": "muon"}}),
    "frozen": ({}, {"freeze": ["stack.layers.0"]}),
    "lora": ({}, {"lora": {"r": 2, "target_modules": ["q_proj", "v_proj"]}}),
}


def train_design(name: str, ranks: ProcessGroup, parallel: dict[str, Any]) -> dict[str, Any]:
    model, train = DESIGNS[name]
    settings = {"steps": 9, "optimizer": ADAM, "lr": 1e-2, "precision": "fp32", "parallel": parallel} | train
    config = TrainConfig.model_validate(settings)
    training = TrainState(build(ModelConfig.model_validate(SIZES | model), 1).double(), config, 16, 9)
    task, losses = NextTokens(), []
    training.split(task, ranks, config)
    for step in range(STEPS):
        training.progress.step += 1
        torch.manual_seed(step)
        batches = [[0, 2, 1, 4][: 3 + step], [3, 1, 4, 0]][: config.accumulate]
        shards = [rows[ranks.place.data_rank :: ranks.place.data_size] for rows in batches]
        train_step(training, task, [task.collate(shard) for shard in shards], config, ranks)
        losses.append([training.progress.sums.total, training.progress.sums.norm])
    weights, averages = named_state(training.model), training.ema.weights if training.ema else {}
    states = [
        value
        for optimizer in training.optimizers
        for entry in optimizer.state_dict()["state"].values()
        for value in entry.values()
        if value.ndim
    ]
    return {
        "losses": losses,
        "weights": {key: get_whole(w.detach()).flatten().tolist() for key, w in weights.items()},
        "ema": {key: get_whole(w).flatten().tolist() for key, w in averages.items()},
        "size": sum(get_local(p).numel() for p in training.model.parameters()),
        "state": sum(get_local(value).numel() for value in states),
    }


def assert_trains_like_one_process(
    names: list[str], world_size: int, parallel: dict[str, Any], tolerance: float = 1e-6
) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    def work(ranks: ProcessGroup) -> list[dict[str, Any]]:
        ranks.form_mesh(ParallelConfig.model_validate(parallel), "cpu")
        return [train_design(name, ranks, parallel) for name in names]

    outputs = outputs_of(world_size, work)
    results = {}
    for name, *ranks in zip(names, *outputs, strict=True):
        single = train_design(name, SINGLE_PROCESS, {})
        results[name] = single, ranks
        for rank in ranks:
            assert len(rank["losses"]) == STEPS and min(map(min, rank["losses"])) > 0
            for actual, expected in zip(rank["losses"], single["losses"], strict=True):
                assert actual == pytest.approx(expected, rel=tolerance), name
            for group in ("weights", "ema"):
                assert rank[group].keys() == single[group].keys()
                for key, weight in single[group].items():
                    assert rank[group][key] == pytest.approx(weight, abs=tolerance), (name, group, key)
    return results


def compare_shares(
    names: list[str], world_size: int, parallel: dict[str, Any], tolerance: float = 1e-6
) -> None:
    n_shards = parallel["shard"]
    for name, (single, ranks) in assert_trains_like_one_process(
        names, world_size, parallel, tolerance
    ).items():
        sizes = [rank["size"] for rank in ranks]
        assert sum(sizes) == single["size"] * world_size // n_shards, name
        # every dimension of these models can be divided by the ranks, but those of LoRA
        if name != "lora":
            assert max(sizes) == pytest.approx(single["size"] / n_shards, rel=0.01), name
            if name not in ("adafactor", "frozen"):
                states = [rank["state"] for rank in ranks]
                assert max(states) == pytest.approx(single["state"] / n_shards, rel=0.01), name


@pytest.mark.parametrize(
    "names",
    [
        ["tied", "experts", "adafactor", "muon", "frozen", "lora"],
        pytest.param(
            ["own head", "shared layers", "batch norm", "modern", "accumulation", "recomputation"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["some", "others"],
)
def test_sharded_designs_match_one_process(names):
    compare_shares(names, 2, {"shard": 2})


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        pytest.param(4, {"shard": 4}, marks=pytest.mark.slow),
        (4, {"shard": 2, "replicate": 2}),
        (3, {"shard": 3}),
    ],
    ids=["four", "hybrid", "three"],
)
def test_other_meshes_match_one_process(world_size, parallel):
    compare_shares(["own head"] if world_size == 4 else ["lora"], world_size, parallel)


def test_reduce_dtype_bf16_is_approximate():
    parallel = {"shard": 2, "reduce_dtype": "bf16"}
    with pytest.raises(AssertionError):
        compare_shares(["tied"], 2, parallel)
    compare_shares(["tied"], 2, parallel, tolerance=1e-2)


@pytest.mark.parametrize(
    "task", [TASKS[0], *(pytest.param(task, marks=pytest.mark.slow) for task in TASKS[1:])]
)
def test_sharded_run_matches_one_process(task, corpus_dir):
    single = train(recipe_of(corpus_dir, task, f"sharded-{task}-1"), 1)
    recipe = recipe_of(corpus_dir, task, f"sharded-{task}-2", parallel={"shard": 2})
    assert_same_run(single, train(recipe, 2))


@pytest.mark.slow  # test_split_checkpoint.py resumes one with parts of checkpoints
@pytest.mark.acceptance("G6")
@pytest.mark.parametrize("parallel", ["shard", "tensor", "context"])
def test_split_run_resumes_on_one_process(parallel, corpus_dir):
    name = f"{parallel}-on"
    single = train(recipe_of(corpus_dir, "language-model", f"{name}-whole"), 1)
    train(recipe_of(corpus_dir, "language-model", name, steps=2, parallel={parallel: 2}), 2)
    assert_same_run(single, train(recipe_of(corpus_dir, "language-model", name), 1, resume=True))
