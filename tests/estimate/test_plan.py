import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.estimate.plan_helpers import TASKS, write_finetuning_recipe
from tests.estimate.plan_helpers import workdir as workdir

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.cost.communication import ParallelLayout
from polyhead.cost.flops import count_forward, update_flops_factor
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.estimate import inputs
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details
from polyhead.models import build, preset_config
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distill import load_teachers, make_distillation_task
from polyhead.train.loggers import Reporters
from polyhead.train.loop import total_steps


def open_task(recipe):
    task, settings = TASK.get(recipe.task.name), recipe.tokenizer
    texts = task.iter_texts(recipe)
    tokenizer = train_tokenizer(texts, settings.kind, settings.vocab_size, settings.sentinels)
    return tokenizer, task.open(recipe, tokenizer, Reporters())


def forward_flops(config, shape):
    return sum(op.total for op in count_forward(config, shape))


@pytest.mark.parametrize("name", TASKS)
def test_plan_is_that_of_the_training(workdir, name):
    recipe = load_recipe(f"{name}.yaml")
    plan = estimate(recipe, probe=False)
    tokenizer, task = open_task(recipe)
    epoch = task.epoch_batches(0)
    assert (plan.batches, plan.steps) == (len(epoch), total_steps(task, recipe.train))
    counts = [task.count_labels(task.collate(rows)) for rows in epoch]
    assert plan.labels == pytest.approx(np.mean(counts), rel=0.1)
    config = recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels)
    assert plan.parameters == sum(p.numel() for p in build(config).parameters())
    assert plan.operations.forward == forward_flops(config, plan.largest)
    assert plan.operations.run == plan.operations.step * plan.steps
    assert not any(workdir.glob("runs/*/*.*")), "nothing is written"


def test_operations_of_update_are_mean_of_batches(workdir):
    recipe = load_recipe("translation.yaml", ["train.accumulate=2"])
    plan = estimate(recipe, probe=False)
    tokenizer, task = open_task(recipe)
    config, epoch = recipe.model.with_vocabulary(tokenizer.vocab_size), task.epoch_batches(0)
    assert len(epoch) <= inputs._SAMPLED_BATCHES, "all are counted"
    total = 0
    for rows in epoch:
        batch = task.collate(rows)
        shape = BatchShape(*batch.target.shape, batch.source.size(1), batch.n_tokens)
        total += forward_flops(config, shape)
    factor = 2 * update_flops_factor(has_adapters=False)
    assert plan.operations.step == pytest.approx(factor * total / len(epoch))
    assert plan.steps == total_steps(task, recipe.train)


def test_no_probe_builds_no_model(workdir, monkeypatch):
    monkeypatch.setattr("polyhead.estimate.benchmark.build", pytest.fail)
    assert estimate(load_recipe("translation.yaml"), probe=False).time is None
    with pytest.raises(UserError, match="lable"):  # an unknown column
        estimate(load_recipe("classification.yaml", ["data.label=lable"]), probe=False)


def test_cache_of_hybrid_has_keys_values_and_states():
    pattern = ({"attention": "linear"}, {}, {"block": "lstm"})
    sizes = {"vocab_size": 40, "d_model": 16, "n_layers": 5, "n_heads": 2, "max_len": 64}
    config = ModelConfig(kind="decoder", layer_pattern=pattern, **sizes)
    plan = estimate(config, probe=False, batch_size=2, seq_len=32, decode_batch=(4,), context_len=32)
    per_token = 2 * 2 * 16 * 4  # keys and values of all heads, in two layers
    assert plan.decoding.heads == {2: per_token, 1: per_token / 2}
    costs = {cost.cache.name: cost for cost in plan.decoding.caches}
    assert "state" not in costs and plan.decoding.caches[0].cache.name == "static"
    states = 2 * 2 * 8 * 9 + 2 * 16  # numbers a row: sums of two layers, h and c
    slots = 33  # one of them for padding
    assert costs["static"].per_token == per_token + 8
    assert costs["static"].nbytes == 4 * (slots * (per_token + 8) + 4 * states)


@pytest.mark.parametrize("has_text", [True, False])
def test_initial_weights_of_other_shapes_are_refused(workdir, has_text):
    write_finetuning_recipe(workdir)
    if not has_text:
        Path("t.en").unlink()
    assert estimate(load_recipe("tuned.yaml"), probe=False).memory.total
    for key, value, actual in (("d_model", 32, 16), ("n_layers", 3, 2)):
        message = rf"init_from\.run: .* model\.{key}={value} \(the run has {actual}\)"
        with pytest.raises(UserError, match=message):
            estimate(load_recipe("tuned.yaml", [f"model.{key}={value}"]), probe=False)


def make_distillation_recipe(name, teachers, *overrides):
    """A recipe whose teachers are saved here: the first with its own tokens, the others with characters."""
    recipe = load_recipe(f"{name}.yaml")
    tokenizer, task = open_task(recipe)
    for directory, d_model in teachers.items():
        spec = recipe.model.model_copy(update={"d_model": d_model})
        model = build(spec.with_vocabulary(tokenizer.vocab_size, task.labels), 1)
        shutil.rmtree(directory, ignore_errors=True)
        Run(model, tokenizer, GenerationConfig()).save(Path(directory))
        tokenizer = train_tokenizer(["abcdefghijklmnopqrstuvwxyz "], Choice("char"), 300)
    return load_recipe(f"{name}.yaml", [f"distill={{teacher: [{', '.join(teachers)}]}}", *overrides])


SLOW_TASKS = [pytest.param(n, marks=pytest.mark.slow) for n in ("translation", "masked-lm", "denoising")]


@pytest.mark.parametrize("name", ["language-model", "classification", *SLOW_TASKS])
def test_teachers_cost_a_forward_pass_and_their_weights(workdir, name):
    plain = estimate(load_recipe(f"{name}.yaml", ["train.accumulate=2"]), probe=False)
    teachers = {"a": 32, "b": 48} if name == "classification" else {"a": 32}
    recipe = make_distillation_recipe(name, teachers, "train.accumulate=2")
    plan = estimate(recipe, seconds=0.01, decode_batch=(1,))
    runs = load_teachers(recipe.distill)
    tokenizer, task = open_task(recipe)
    distillation, total = make_distillation_task(task, recipe, runs, tokenizer), 0
    epoch = distillation.epoch_batches(0)
    assert len(epoch) <= inputs._SAMPLED_BATCHES, "all are counted"
    for rows in epoch:
        for run, batch in zip(runs, distillation.collate(rows).teachers, strict=True):
            if name in ("translation", "denoising"):
                shape = BatchShape(*batch.target.shape, batch.source.size(1), task.count_labels(batch))
            elif name == "classification":
                shape = BatchShape(*batch.inputs.tokens.shape, label_count=len(rows))
            else:
                shape = BatchShape(*batch.tokens.shape, label_count=task.count_labels(batch))
            total += forward_flops(run.config, shape)
    assert plan.operations.teachers == pytest.approx(2 * total / len(epoch), rel=0.01)
    assert plan.operations.step - plan.operations.teachers == pytest.approx(plain.operations.step, rel=0.01)
    nbytes = sum(x.nbytes for run in runs for x in [*run.model.parameters(), *run.model.buffers()])
    assert plan.memory == plain.memory._replace(teachers=nbytes)
    assert plan.memory.total == plain.memory.total + nbytes
    assert plan.time is not None
    assert "FLOPs of teachers)" in "\n".join(format_details(plan))
    assert "teachers" not in "\n".join(format_details(plain))


def test_teacher_needs_student_width_and_text(workdir):
    recipe = make_distillation_recipe("classification", {"a": 32}, "distill.hidden_weight=1")
    with pytest.raises(UserError, match=r"the student has 16, the teacher 32"):
        estimate(recipe, probe=False)
    # the cost is unknown without the text
    recipe = make_distillation_recipe("classification", {"a": 32})
    (workdir / "t.tsv").unlink()
    plan = estimate(recipe, probe=False)
    assert plan.memory.teachers == plan.operations.teachers == 0
    assert "the cost of the teachers is unknown without the text" in plan.notes


def test_limits_of_context_and_memory():
    config = preset_config("tiny", 50, max_len=64)
    for context in (0, 65, 10**6):
        with pytest.raises(UserError, match=rf"context_len is {context}, expected 1 to max_len \(64\)"):
            estimate(config, probe=False, context_len=context)
    assert estimate(config, probe=False, context_len=64).decoding is not None
    # a model that does not fit is not probed
    config = preset_config("gpt3-6.7b", 50257, n_layers=1)
    plan = estimate(config, batch_size=4096, decode_batch=(1,), context_len=8)
    assert plan.time is None and plan.steps is None
    assert any("not probed" in note for note in plan.notes)


def test_single_rank_is_the_model():
    config = ModelConfig(kind="decoder", vocab_size=50, d_model=32, n_layers=3, n_heads=2, max_len=32)

    def plan_of(**options):
        return estimate(config, probe=False, batch_size=4, seq_len=16, **options)

    plan = plan_of(recompute="blocks", layout=None)
    memory = plan.rank.memory
    assert plan.rank.time is None
    names = ("weights", "gradients", "loss")
    assert [getattr(memory, n) for n in names] == [getattr(plan.memory, n) for n in names]
    options = {"precision": plan.precision, "recompute": True, "kernels": True}
    expected = estimate_training_memory(config, BatchShape(4, 16), Choice("adamw"), **options)
    assert (memory.activations, memory.recompute_buffer) == (expected.activations, expected.block_activations)
    assert 3 * 4 * 16 * 32 * 4 <= memory.activations < plan.memory.activations
    with pytest.raises(UserError, match=r"unknown recompute 'block'; did you mean 'blocks'\?"):
        plan_of(recompute="block")
    plain = plan_of()
    assert plain.rank is None and plain.traffic is None
    a100 = plan_of(hardware="a100")
    assert a100.rank.time is not None and a100.precision == "bf16"
    activations = a100.rank.memory.activations
    assert activations == a100.memory.activations
    # half of the batch in each of two micro-batches has half of the activations
    halves = plan_of(hardware="a100", layout=ParallelLayout(micro_batches=2)).rank.memory.activations
    bf16_weights = 2 * 3 * 12 * 32 * 32  # saved with the activations
    assert halves - bf16_weights == (activations - bf16_weights) / 2


def test_rank_recomputes_as_the_recipe_or_the_option(workdir):
    recipe = load_recipe("translation.yaml", ["train.recompute=blocks"])
    options = {"probe": False, "layout": ParallelLayout(data_parallel=2)}
    plan = estimate(recipe, **options)
    assert plan.rank.recompute == "blocks"
    assert plan.rank.memory.activations == plan.memory.activations
    assert plan.rank.memory.recompute_buffer == plan.memory.block_activations
    memory = estimate(recipe, recompute="none", **options).rank.memory
    assert memory.recompute_buffer == 0 and memory.activations > plan.memory.activations
