import pytest
import torch
from tests.estimate.plan_helpers import TASKS
from tests.estimate.plan_helpers import workdir as workdir

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.workload import BatchShape
from polyhead.estimate import benchmark
from polyhead.estimate.benchmark import RandomTokenTask, UpdateTimes, measure_decoding_speed
from polyhead.estimate.plan import estimate
from polyhead.models import build
from polyhead.run.recipe import load_recipe

SIZES = {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2}


@pytest.mark.parametrize("name", TASKS)
def test_run_time_follows_from_updates(workdir, name):
    rng_state = torch.get_rng_state()
    plan = estimate(load_recipe(f"{name}.yaml"), seconds=0.01, decode_batch=(2,))
    assert plan.time.epoch == pytest.approx(plan.time.update * plan.batches)
    assert plan.time.run == plan.time.update * plan.steps
    assert plan.time.tokens_per_s == pytest.approx(plan.labels / plan.time.update)
    assert [speed.rows for speed in plan.time.speeds] == ([] if plan.decoding is None else [2])
    assert torch.equal(torch.get_rng_state(), rng_state)


def test_disturbed_update_does_not_count():
    assert UpdateTimes([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]).predict_seconds(10.0) == 20.0


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "encoder-decoder"},
        {"kind": "decoder"},
        {"kind": "encoder"},
        {"kind": "encoder", "labels": ("a", "b")},
        {"kind": "encoder", "generator_layers": 1, "n_layers": 2},
        {"kind": "encoder", "lm_head": False},
        {"kind": "encoder", "lm_head": False, "causal": True},
    ],
    ids=str,
)
def test_random_task_has_the_shape_of_the_batch(fields):
    config = ModelConfig.model_validate({**SIZES, **fields})
    shape = BatchShape(3, 8, 5 if fields["kind"] == "encoder-decoder" else 0, 10)
    task = RandomTokenTask(config, shape)
    batch = task.collate(None)
    assert batch[0].shape == (3, 5 if shape.source else 8)
    loss = task.loss(build(config, 1), batch)
    assert loss.count == task.count_labels(batch) == (3 if config.labels else 10)
    assert loss.total.requires_grad and loss.total.isfinite()
    train = TrainConfig(steps=1, accumulate=2)
    times = benchmark.measure_update_times(config, task, train, [batch], [5.0], 0.0)
    assert times.work == [10.0] * 3
    if fields["kind"] == "decoder":
        train = TrainConfig(steps=1, accumulate=10**9)  # would never end
        assert benchmark.measure_update_times(config, task, train, [batch], [5.0], 0.0).work == [320.0] * 3


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_decoding_is_measured_at_full_context(kind):
    config = ModelConfig(kind=kind, max_len=64, **SIZES)
    speed = measure_decoding_speed(config, 3, 1000, 5, None, new_tokens=4)
    assert (speed.rows, speed.context) == (3, 64 - 6) and speed.tokens_per_s > 0
    if kind == "decoder":
        short = config.model_copy(update={"max_len": 12, "position": Choice("learned", offset=0)})
        assert measure_decoding_speed(short, 2, 8, 0, None).context == 1
