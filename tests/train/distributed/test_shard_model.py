from math import prod
from typing import Any

import pytest
import torch
from tests.train.distributed.rank_runs import TASKS, assert_same_run, recipe_of, train
from tests.train.ranks import outputs_of, run_ranks
from tests.train.test_loss_module import NextTokens

from polyhead import ModelConfig, build
from polyhead.config.config_sections import ParallelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.nn.state import named_state
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.local_tensor import full_tensor, get_local
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.loop import train_step
from polyhead.train.run_training import run_training
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5")]
SIZES = {"vocab_size": 24, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 8}
SIZES |= {"kind": "decoder", "dropout": 0.0}
STEPS = 3
ADAM = {"name": "adamw", "eps": 1e-3}
MODERN = {"position": "rope", "n_kv_heads": 1, "norm": "rmsnorm", "feed_forward": "swiglu"}
DESIGNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the model, and of the training
    "tied": ({}, {}),
    "own head": ({"tie_embeddings": "none"}, {"ema": 0.9}),
    "shared layers": ({"share_layers": True}, {}),
    "experts": ({"feed_forward": {"name": "moe", "n_experts": 4}}, {}),
    "batch norm": ({"norm": {"name": "batchnorm"}}, {}),
    "table of positions": ({"position": "learned"}, {"recompute": "blocks"}),
    "tables of layers": (
        {"layer_pattern": [{"position": "t5"}, {"position": "rope"}], "n_layers": 4},
        {"clip_norm": 0.1},
    ),
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
    strategy = parallelize(training, task, config, ranks)
    for step in range(STEPS):
        training.progress.step += 1
        torch.manual_seed(step)
        batches = [[0, 2, 1, 4][: 3 + step], [3, 1, 4, 0]][: config.accumulate]
        shards = [rows[ranks.place.data_rank :: ranks.place.data_size] for rows in batches]
        metrics = train_step(strategy, [task.collate(shard) for shard in shards]).read()
        losses.append([metrics.total, metrics.norm])
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
        "weights": {key: full_tensor(w.detach()).flatten().tolist() for key, w in weights.items()},
        "ema": {key: full_tensor(w).flatten().tolist() for key, w in averages.items()},
        "size": sum(get_local(p).numel() for p in training.model.parameters()),
        "state": sum(get_local(value).numel() for value in states),
    }


def assert_trains_like_one_process(names, world_size, parallel, tolerance=1e-6):
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


def compare_shares(names, world_size, parallel, tolerance=1e-6):
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


SHARDED_DESIGNS = ["tied", "experts", "adafactor", "muon", "frozen", "lora"]
SLOW_DESIGNS = ["own head", "shared layers", "batch norm", "modern", "accumulation", "recomputation"]


@pytest.mark.parametrize(
    ("world_size", "parallel", "names"),
    [
        (2, {"shard": 2}, SHARDED_DESIGNS),
        pytest.param(2, {"shard": 2}, SLOW_DESIGNS, marks=pytest.mark.slow),
        pytest.param(4, {"shard": 4}, ["own head"], marks=pytest.mark.slow),
        (4, {"shard": 2, "replicate": 2}, ["own head"]),
        (3, {"shard": 3}, ["lora"]),
    ],
    ids=["some", "others", "four", "hybrid", "three"],
)
def test_sharded_designs_match_one_process(world_size, parallel, names):
    compare_shares(names, world_size, parallel)


def test_reduce_dtype_bf16_is_approximate():
    parallel = {"shard": 2, "reduce_dtype": "bf16"}
    with pytest.raises(AssertionError):
        compare_shares(["tied"], 2, parallel)
    compare_shares(["tied"], 2, parallel, tolerance=1e-2)


FAST_RUNS = {"shard": "translation", "tensor": "language-model", "context": "language-model"}
RUNS = [
    pytest.param(task, {name: 2}, {}, marks=[] if task == fast else pytest.mark.slow)
    for name, fast in FAST_RUNS.items()
    for task in TASKS
    if name != "context" or task != "classification"
]
FEW_ROWS = {"max_tokens": 26, "accumulate": 2}  # two rows at most: some ranks have none


@pytest.mark.parametrize(
    ("task", "parallel", "options"),
    [
        *RUNS,
        ("translation", {"shard": 3}, FEW_ROWS),
        pytest.param("translation", {"tensor": 2, "shard": 2}, {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sharded_run_matches_one_process(task, parallel, options, corpus_dir):
    """A rank that made more passes than another, or had no validation batch, would wait in vain."""
    name = f"{task}-{parallel}"
    single = train(recipe_of(corpus_dir, task, f"{name}-1", **options), 1)
    recipe = recipe_of(corpus_dir, task, f"{name}-2", parallel=parallel, **options)
    assert_same_run(single, train(recipe, prod(parallel.values())))


def test_model_that_cannot_be_sharded_is_refused(corpus_dir):
    options = {"model": {"n_kv_heads": 1}, "parallel": {"tensor": 2}}
    recipe = recipe_of(corpus_dir, "language-model", "tensor-refused", **options)
    first, second = run_ranks(2, lambda ranks: run_training(recipe, ranks=ranks), timeout=60)
    reason = "1 key/value heads cannot be divided by 2: tensor must divide their number"
    assert (first.code, first.output) == (2, f"train.parallel (tensor 2): {reason}")
    assert second.code in (2, RANK_LOST)


SPLITTABLE = [name for name in DESIGNS if name != "modern"]  # that has one key/value head


@pytest.mark.parametrize(
    ("world_size", "parallel", "names"),
    [
        (2, {}, ["own head", "shared layers", "accumulation", "adafactor", "muon"]),
        pytest.param(2, {}, SPLITTABLE, marks=pytest.mark.slow),
        pytest.param(4, {"shard": 2}, SPLITTABLE, marks=pytest.mark.slow),
        pytest.param(4, {"replicate": 2}, SPLITTABLE, marks=pytest.mark.slow),
    ],
    ids=["fast", "all", "shard", "replicate"],
)
def test_tensor_parallel_designs_match_one_process(world_size, parallel, names):
    assert_trains_like_one_process(names, world_size, parallel | {"tensor": 2}, tolerance=1e-7)


@pytest.mark.slow  # test_sharded_checkpoint.py resumes one with parts of checkpoints
@pytest.mark.acceptance("G6")
@pytest.mark.parametrize("parallel", ["shard", "tensor", "context"])
def test_sharded_run_resumes_on_one_process(parallel, corpus_dir):
    name = f"{parallel}-on"
    single = train(recipe_of(corpus_dir, "language-model", f"{name}-whole"), 1)
    train(recipe_of(corpus_dir, "language-model", name, steps=2, parallel={parallel: 2}), 2)
    assert_same_run(single, train(recipe_of(corpus_dir, "language-model", name), 1, resume=True))
