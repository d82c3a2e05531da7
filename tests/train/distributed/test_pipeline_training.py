from itertools import product

import pytest
from tests.train.conftest import Notes, user_error
from tests.train.distributed.rank_runs import (
    STEPS,
    TASKS,
    assert_close,
    assert_same_run,
    on_call,
    recipe_of,
    train,
)
from tests.train.distributed.test_faults import ACTIONS, TIMEOUT, mark_slow
from tests.train.ranks import run_ranks

from polyhead.config.config_sections import ParallelConfig
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.mesh import resolve_mesh_shape
from polyhead.train.distributed.pipeline import PipelineModel, StageModule
from polyhead.train.distributed.stage_state import StageTensors
from polyhead.train.run_training import run_training
from polyhead.train.strategies.parallelize import check_parallel

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5")]
PIPELINE_TASKS = [task for task in TASKS if task != "replaced-token-detection"]


def train_pipeline(corpus_dir, task, out, world_size=2, resume=False, **options):
    parallel = {key: options.pop(key) for key in ParallelConfig.model_fields if key in options}
    parallel = {"pipeline": 2, "micro_batches": 4, **parallel}
    return train(recipe_of(corpus_dir, task, out, parallel=parallel, **options), world_size, resume)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (2, 2)])
def test_resume_with_and_without_pipeline(first, second, corpus_dir):
    name = f"resumed-{first}-{second}"
    single = train(recipe_of(corpus_dir, "translation", f"{name}-whole"), 1)

    parallel = [{"pipeline": 2, "micro_batches": 4} if n == 2 else {} for n in (first, second)]
    train(recipe_of(corpus_dir, "translation", name, parallel=parallel[0], steps=STEPS // 2), first)
    recipe = recipe_of(corpus_dir, "translation", name, parallel=parallel[1])
    assert_same_run(single, train(recipe, second, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{}, {"shard": 2}, {"replicate": 2}], ids=str)
def test_stages_write_parts_of_a_checkpoint(sizes, corpus_dir):
    world_size, name = 4 if sizes else 2, f"parts-{sizes}"
    options = {"checkpoint": "sharded", "world_size": world_size, **sizes}
    single = train(recipe_of(corpus_dir, "translation", f"{name}-1"), 1)
    assert_same_run(single, train_pipeline(corpus_dir, "translation", name, **options))
    for resumed_run in ("cut", "on"):
        train_pipeline(corpus_dir, "translation", f"{name}-{resumed_run}", steps=STEPS // 2, **options)
    resumed_run = train(recipe_of(corpus_dir, "translation", f"{name}-cut"), 1, resume=True)
    assert_close(single["final"], resumed_run["final"])
    resumed_run = train_pipeline(corpus_dir, "translation", f"{name}-on", resume=True, **options)
    assert_close(single["final"], resumed_run["final"])


MESHES = [
    {"replicate": 2},
    {"shard": 2},
    {"shard": 2, "schedule": "gpipe"},
    {"replicate": 2, "schedule": "zbv"},
    {"replicate": 2, "schedule": "interleaved"},
    {"pipeline": 4},
]
LAYERS = {"model": {"n_layers": 4, "n_decoder_layers": 4}}
SLOW_CASES = [(task, 2, {}, {"model": {"n_layers": 2}}) for task in PIPELINE_TASKS]
SLOW_CASES += [(task, 4, mesh, LAYERS) for task in ("translation", "language-model") for mesh in MESHES]


@pytest.mark.parametrize(
    ("task", "world_size", "parallel", "options"),
    [("translation", 2, {}, {}), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
def test_pipeline_run_matches_one_process(task, world_size, parallel, options, corpus_dir):
    names = [f"pipeline-{task}-{parallel}-{n}-{bool(options)}" for n in (1, world_size)]
    single = train(recipe_of(corpus_dir, task, names[0], **options), 1)
    assert_same_run(single, train_pipeline(corpus_dir, task, names[1], world_size, **options, **parallel))
    cards = [(corpus_dir / name / "README.md").read_text() for name in names]
    weights = [line for card in cards for line in card.splitlines() if "EMA at step" in line]
    assert len(weights) == 2 and len(set(weights)) == 1, "the same candidates for the final weights"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"optimizer": {"name": "adafactor"}}, 1e-4),
        ({"optimizer": {"name": "muon"}}, 1e-2),  # computes in bf16
        ({"freeze": ["encoder.layers.0"], "lr_factors": {"decoder": 0.5}, "clip_norm": 0.1}, 1e-5),
        ({"recompute": "blocks", "accumulate": 3}, 1e-5),
    ],
    ids=str,
)
def test_training_options_in_pipeline_match_one_process(options, tolerance, corpus_dir):
    options = {"ema": None} | options
    single = train(recipe_of(corpus_dir, "translation", f"options-{options}-1", **options), 1)
    pipeline = train_pipeline(corpus_dir, "translation", f"options-{options}-2", **options)
    for measure in ("loss", "grad_norm"):
        rows = ([row[measure] for row in run["metrics"] if measure in row] for run in (single, pipeline))
        assert next(rows) == pytest.approx(next(rows), rel=tolerance), measure
    assert single["last"].state["optimizers"] == pipeline["last"].state["optimizers"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": {"schedule": "interleaved", "shard": 2}}, "set gpipe or 1f1b"),
        ({"parallel": {"tensor": 2}}, "can be combined with replicate and shard"),
        ({"parallel": {"schedule": "zbv"}, "compile": "layers"}, "set train.compile=none"),
        ({"eval_bleu": True}, "translates, which takes the whole model"),
        ({"model": {"norm": "batchnorm"}}, "needs the statistics of the whole batch"),
    ],
)
def test_training_not_possible_in_pipeline_is_refused(options, message, corpus_dir):
    parallel = {"pipeline": 2, **options.get("parallel", {})}
    recipe = recipe_of(corpus_dir, "translation", "refused", **options | {"parallel": parallel})
    world_size = 2 * parallel.get("shard", 1) * parallel.get("tensor", 1)
    shape = resolve_mesh_shape(recipe.train.parallel, world_size)
    with user_error(message):
        check_parallel(recipe, recipe.model.with_vocabulary(100), shape)


POINTS = {
    "stage": (StageModule, "forward", 12),
    "backward": (PipelineModel, "sum_shared_gradients", 3),
    "evaluation": (PipelineModel, "map", 1),
    "save": (StageTensors, "__getitem__", 5),
}
FAULTS = list(product(("kill", "stop", "raise", "refuse"), (0, 1), POINTS))


@pytest.mark.parametrize(("fault", "rank", "point"), mark_slow(FAULTS, [("kill", 1, "stage")]))
def test_fault_of_one_stage_ends_all(fault, rank, point, corpus_dir):
    action, code = ACTIONS[fault]
    parallel = {"pipeline": 2, "micro_batches": 4}
    recipe = recipe_of(corpus_dir, "translation", f"fault-{fault}-{rank}-{point}", parallel=parallel)
    owner, name, n = POINTS[point]

    def work(ranks):
        if ranks.rank == rank:
            setattr(owner, name, on_call(n, getattr(owner, name), action))
        run_training(recipe, report=Notes(), ranks=ranks)

    results = run_ranks(2, work, timeout=TIMEOUT, n_expected=1 if fault == "stop" else None)
    assert results[rank].code == code, results
    assert results[1 - rank].code == RANK_LOST, results
    if fault == "kill":
        assert train(recipe, 2, resume=True)["last"].step == STEPS
