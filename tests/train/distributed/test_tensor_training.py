import pytest
from tests.train.distributed.rank_runs import TASKS, assert_same_run, recipe_of, train
from tests.train.distributed.test_shard_model import DESIGNS, assert_trains_like_one_process
from tests.train.ranks import run_ranks

from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("no_report")
SPLITTABLE = [name for name in DESIGNS if name != "modern"]  # that has one key/value head
FAST = ["own head", "shared layers", "accumulation", "adafactor", "muon"]


@pytest.mark.parametrize(
    ("task", "parallel"),
    [
        ("language-model", {"tensor": 2}),
        *(
            pytest.param(task, {"tensor": 2}, marks=pytest.mark.slow)
            for task in TASKS
            if task != "language-model"
        ),
        pytest.param("translation", {"tensor": 2, "shard": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tensor_parallel_run_matches_one_process(task, parallel, corpus_dir):
    name = f"{task}-{len(parallel)}"
    single = train(recipe_of(corpus_dir, task, f"tensor-{name}-1"), 1)
    recipe = recipe_of(corpus_dir, task, f"tensor-{name}-2", parallel=parallel)
    assert_same_run(single, train(recipe, 2 ** len(parallel)))


def test_model_that_cannot_be_split_is_refused(corpus_dir):
    options = {"model": {"n_kv_heads": 1}, "parallel": {"tensor": 2}}
    recipe = recipe_of(corpus_dir, "language-model", "tensor-refused", **options)
    first, second = run_ranks(2, lambda ranks: run_training(recipe, ranks=ranks), timeout=60)
    reason = "1 key/value heads cannot be divided by 2: tensor must divide their number"
    assert (first.code, first.output) == (2, f"train.parallel (tensor 2): {reason}")
    assert second.code in (2, RANK_LOST)


@pytest.mark.parametrize(
    ("world_size", "parallel", "names"),
    [
        (2, {}, FAST),
        pytest.param(2, {}, SPLITTABLE, marks=pytest.mark.slow),
        pytest.param(4, {"shard": 2}, SPLITTABLE, marks=pytest.mark.slow),
        pytest.param(4, {"replicate": 2}, SPLITTABLE, marks=pytest.mark.slow),
    ],
    ids=["fast", "all", "shard", "replicate"],
)
def test_designs_and_optimizers_match_one_process(world_size, parallel, names):
    assert_trains_like_one_process(names, world_size, parallel | {"tensor": 2}, tolerance=1e-7)
