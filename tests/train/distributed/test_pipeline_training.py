"""A training in a pipeline equals that of one process: losses, weights, files, resumed on any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import STEPS, assert_close, assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.test_faults import ACTIONS, TIMEOUT, at
from tests.train.distributed.test_process_group import KINDS
from tests.train.several import together

from polyhead.config.config_sections import ParallelConfig
from polyhead.core.errors import UserError
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.mesh import resolve_mesh_shape
from polyhead.train.distributed.parallel_check import check_parallel
from polyhead.train.distributed.pipeline import PipelineModel, StageModule
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.stage_state import StageTensors
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5")]
TASKS = [kind for kind in KINDS if kind != "replaced-token-detection"]


def piped(
    place: Path, kind: str, out: str, world: int = 2, resume: bool = False, **train: Any
) -> dict[str, Any]:
    """What comes of it in a pipeline, of two processes if nothing else is said."""
    sizes = {name: train.pop(name) for name in ParallelConfig.model_fields if name in train}
    recipe = recipe_of(place, kind, out, parallel={"pipeline": 2, "micro_batches": 4, **sizes}, **train)
    return trained(recipe, world, resume)


def test_a_translation_learns_the_same(place: Path) -> None:
    alone = trained(recipe_of(place, "translation", "piped-1"), 1)
    assert_same(alone, piped(place, "translation", "piped-2"))
    readme = [(place / run / "README.md").read_text() for run in ("piped-1", "piped-2")]
    weights = [line for text in readme for line in text.splitlines() if "EMA at step" in line]
    assert len(weights) == 2 and len(set(weights)) == 1, "the same candidates for the final weights"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("2", "1"), ("1", "2"), ("2", "2")])
def test_a_run_resumes_with_and_without_a_pipeline(first: str, then: str, place: Path) -> None:
    alone = trained(recipe_of(place, "translation", f"resumed-{first}-{then}-whole"), 1)

    def run(processes: str, resume: bool = False, **train: Any) -> dict[str, Any]:
        name = f"resumed-{first}-{then}"
        if processes == "2":
            return piped(place, "translation", name, resume=resume, **train)
        return trained(recipe_of(place, "translation", name, **train), 1, resume)

    run(first, steps=4)
    assert_same(alone, run(then, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{}, {"shard": 2}, {"replicate": 2}], ids=str)
def test_parts_of_a_checkpoint_are_written_by_the_stages(sizes: dict[str, Any], place: Path) -> None:
    """They are the whole state, and are read by any number of processes."""
    world, name = 4 if sizes else 2, f"parts-{sizes}"
    alone = trained(recipe_of(place, "translation", f"{name}-1"), 1)
    assert_same(alone, piped(place, "translation", name, world, checkpoint="sharded", **sizes))
    piped(place, "translation", f"{name}-cut", world, steps=4, checkpoint="sharded", **sizes)
    resumed = trained(recipe_of(place, "translation", f"{name}-cut"), 1, resume=True)
    assert_close(alone["final"], resumed["final"])
    piped(place, "translation", f"{name}-on", world, steps=4, checkpoint="sharded", **sizes)
    on = piped(place, "translation", f"{name}-on", world, resume=True, checkpoint="sharded", **sizes)
    assert_close(alone["final"], on["final"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_every_task_learns_the_same(kind: str, place: Path) -> None:
    model = {"n_layers": 2}
    alone = trained(recipe_of(place, kind, f"piped-{kind}-1", model=model), 1)
    assert_same(alone, piped(place, kind, f"piped-{kind}-2", model=model))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [
        {"replicate": 2},
        {"shard": 2},
        {"shard": 2, "schedule": "gpipe"},
        {"replicate": 2, "schedule": "zbv"},
        {"replicate": 2, "schedule": "interleaved"},
        {"pipeline": 4},
    ],
    ids=str,
)
def test_a_pipeline_learns_the_same_with_other_dimensions(parallel: dict[str, Any], place: Path) -> None:
    for kind in ("translation", "language-model"):
        model = {"n_layers": 4, "n_decoder_layers": 4}
        alone = trained(recipe_of(place, kind, f"mesh-{kind}-{parallel}-1", model=model), 1)
        assert_same(alone, piped(place, kind, f"mesh-{kind}-{parallel}", 4, model=model, **parallel))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "near"),
    [
        ({"optimizer": {"name": "adafactor"}}, 1e-4),
        ({"optimizer": {"name": "muon"}}, 1e-2),  # which computes in bf16
        ({"freeze": ["encoder.layers.0"], "lr_factors": {"decoder": 0.5}, "clip_norm": 0.1}, 1e-5),
        ({"recompute": "blocks", "accumulate": 3}, 1e-5),
    ],
    ids=str,
)
def test_settings_of_a_training_are_those_of_one_process(
    train: dict[str, Any], near: float, place: Path
) -> None:
    train = {"ema": None} | train
    alone = trained(recipe_of(place, "translation", f"settings-{train}-1", **train), 1)
    pipeline = piped(place, "translation", f"settings-{train}-2", **train)
    for measure in ("loss", "grad_norm"):
        ours, theirs = (
            [row[measure] for row in run["metrics"] if measure in row] for run in (alone, pipeline)
        )
        assert ours == pytest.approx(theirs, rel=near), measure
    assert alone["last"].state["optimizers"] == pipeline["last"].state["optimizers"]


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"parallel": {"schedule": "interleaved", "shard": 2}}, "set gpipe or 1f1b"),
        ({"parallel": {"tensor": 2}}, "can be combined with replicate and shard"),
        ({"parallel": {"schedule": "zbv"}, "compile": "layers"}, "set train.compile=none"),
        ({"eval_bleu": True}, "translates, which takes the whole model"),
        ({"model": {"norm": "batchnorm"}}, "needs the statistics of the whole batch"),
    ],
)
def test_what_cannot_be_in_a_pipeline_is_refused_before_training(
    train: dict[str, Any], said: str, place: Path
) -> None:
    parallel = {"pipeline": 2, **train.pop("parallel", {})}
    recipe = recipe_of(place, "translation", "refused", parallel=parallel, **train)
    shape = resolve_mesh_shape(
        recipe.train.parallel, 2 * parallel.get("shard", 1) * parallel.get("tensor", 1)
    )
    config = recipe.model.with_vocabulary(100)
    with pytest.raises(UserError, match=said):
        check_parallel(recipe, config, shape)


WHERE: dict[str, tuple[Any, str, int]] = {
    "stage": (StageModule, "forward", 30),
    "backward": (PipelineModel, "sum_shared_gradients", 3),
    "evaluation": (PipelineModel, "map", 1),
    "save": (StageTensors, "__getitem__", 5),
}
FAULTS = [
    (what, at, where) for what in ("kill", "stop", "raise", "refuse") for at in (0, 1) for where in WHERE
]


@pytest.mark.parametrize(
    ("what", "rank", "where"),
    [pytest.param(*case, marks=[] if case == ("kill", 1, "stage") else pytest.mark.slow) for case in FAULTS],
)
def test_all_end_when_a_process_of_a_pipeline_fails(what: str, rank: int, where: str, place: Path) -> None:
    """And the run goes on from its checkpoints."""
    action, code = ACTIONS[what]
    recipe = recipe_of(place, "translation", f"fault-{what}-{rank}-{where}",
        parallel={"pipeline": 2, "micro_batches": 4})  # fmt: skip
    owner, name, call = WHERE[where]

    def work(ranks: ProcessGroup) -> None:
        if ranks.rank == rank:
            setattr(owner, name, at(call, getattr(owner, name), action))
        run_training(recipe, report=Notes(), ranks=ranks)

    ends = together(2, work, timeout=TIMEOUT, enough=1 if what == "stop" else None)
    assert ends[rank].code == code, ends
    assert ends[1 - rank].code == RANK_LOST, ends
    if what == "kill":
        assert trained(recipe, 2, resume=True)["last"].step == STEPS
