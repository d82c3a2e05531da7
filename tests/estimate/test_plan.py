"""Plans against the runs they are plans of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.estimate.plan_helpers import RECIPES, begun_with
from tests.estimate.plan_helpers import home as home

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.cost.communication import ParallelLayout
from polyhead.cost.flops import count_forward, update_flops_factor
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.estimate import data_sample
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details, format_si
from polyhead.models import build, preset_config
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distill import load_teachers, make_distillation_task
from polyhead.train.loggers import Reporters
from polyhead.train.loop import total_steps


def opened(recipe: Recipe) -> Any:
    """The task as training opens it."""
    part = TASK.get(recipe.task.name)
    tokenizer = train_tokenizer(
        part.iter_texts(recipe),
        recipe.tokenizer.kind,
        recipe.tokenizer.vocab_size,
        recipe.tokenizer.sentinels,
    )
    return tokenizer, part.open(recipe, tokenizer, Reporters())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_planned_as_it_will_run(home, name):
    recipe = load_recipe(f"{name}.yaml")
    made = estimate(recipe, probe=False)
    tokenizer, task = opened(recipe)
    epoch = task.epoch_batches(0)
    assert made.batches == len(epoch)
    assert made.steps == total_steps(task, recipe.train)
    counts = [task.count_labels(task.collate(rows)) for rows in epoch]
    assert made.labels == pytest.approx(np.mean(counts), rel=0.1)
    config = recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels)
    assert made.parameters == sum(p.numel() for p in build(config).parameters())
    assert made.operations.forward == sum(work.total for work in count_forward(config, made.largest))
    assert made.operations.run == made.operations.step * made.steps
    assert not any(home.glob("runs/*/*.*")), "nothing is written"


def test_operations_of_a_mean_update_are_those_of_its_batches(home):
    recipe = load_recipe("translation.yaml", ["train.accumulate=2"])
    made = estimate(recipe, probe=False)
    tokenizer, task = opened(recipe)
    config, epoch = recipe.model.with_vocabulary(tokenizer.vocab_size), task.epoch_batches(0)
    assert len(epoch) <= data_sample._SAMPLED_BATCHES, "all are looked at"
    total = 0
    for rows in epoch:
        batch = task.collate(rows)
        load = BatchShape(*batch.target.shape, batch.source.size(1), batch.n_tokens)
        total += sum(work.total for work in count_forward(config, load))
    assert made.operations.step == pytest.approx(
        update_flops_factor(has_adapters=False) * 2 * total / len(epoch)
    )
    assert made.steps == total_steps(task, recipe.train)


def test_a_mistake_in_the_files_is_one(home):
    with pytest.raises(UserError, match="lable"):
        estimate(load_recipe("classification.yaml", ["data.label=lable"]), probe=False)


def test_without_a_probe_nothing_is_run(home, monkeypatch):
    def refuse(*given: Any) -> Any:
        raise AssertionError("run")

    monkeypatch.setattr("polyhead.estimate.benchmark.build", refuse)
    assert estimate(load_recipe("translation.yaml"), probe=False).time is None


def test_of_a_hybrid_the_layers_with_keys_and_values_grow():
    turns = ({"attention": "linear"}, {}, {"block": "lstm"})
    config = ModelConfig(
        kind="decoder", vocab_size=40, d_model=16, n_layers=5, n_heads=2, max_len=64, layer_pattern=turns
    )
    made = estimate(config, probe=False, batch_size=2, seq_len=32, decode_batch=(4,), context_len=32).decoding
    assert made is not None
    each = 2 * 2 * 16 * 4  # of a token in two layers: keys and values of all heads
    assert made.heads == {2: each, 1: each / 2}
    found = {held.cache.name: held for held in made.caches}
    assert "state" not in found and made.caches[0].cache.name == "static"
    states = 2 * 2 * 8 * 9 + 2 * 16  # numbers a row: sums of two layers, h and c
    slots = 33  # and the one that swallows padding
    assert (found["static"].nbytes, found["static"].per_token) == (
        4 * (slots * (each + 8) + 4 * states),
        each + 8,
    )


def test_what_does_not_fit_is_not_probed():
    made = estimate(
        preset_config("gpt3-6.7b", 50257, n_layers=1), batch_size=4096, decode_batch=(1,), context_len=8
    )
    assert made.time is None
    assert any("not probed" in note for note in made.notes)
    assert made.steps is None


@pytest.mark.parametrize("there", [True, False], ids=["text", "no text"])
def test_weights_that_do_not_fit_are_told_before_training_would(home, there):
    begun_with(home)
    if not there:
        Path("t.en").unlink()
    assert estimate(load_recipe("tuned.yaml"), probe=False).memory.total
    for change, said in (
        ("model.d_model=32", r"init_from\.run: .* model\.d_model=32 \(the run has 16\)"),
        ("model.n_layers=3", r"init_from\.run: .* model\.n_layers=3 \(the run has 2\)"),
    ):
        with pytest.raises(UserError, match=said):
            estimate(load_recipe("tuned.yaml", [change]), probe=False)


def taught(name: str, teachers: list[str], sizes: list[int], *changes: str) -> Recipe:
    """A recipe with teachers, which are saved here: the first of its own tokens, the others of characters."""
    tokenizer, task = opened(load_recipe(f"{name}.yaml"))
    model = load_recipe(f"{name}.yaml").model
    for number, (teacher, size) in enumerate(zip(teachers, sizes, strict=True)):
        own = train_tokenizer(["abcdefghijklmnopqrstuvwxyz "], Choice("char"), 300) if number else tokenizer
        config = model.model_copy(update={"d_model": size}).with_vocabulary(own.vocab_size, task.labels)
        Run(build(config, 1), own, GenerationConfig()).save(Path(teacher))
    return load_recipe(f"{name}.yaml", [f"distill={{teacher: [{', '.join(teachers)}]}}", *changes])


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "replaced-token-detection"])
def test_teachers_cost_a_forward_pass_and_their_weights(home, name):
    plain = estimate(load_recipe(f"{name}.yaml", ["train.accumulate=2"]), probe=False)
    names, sizes = (["a", "b"], [32, 48]) if name == "classification" else (["a"], [32])
    recipe = taught(name, names, sizes, "train.accumulate=2")
    made = estimate(recipe, seconds=0.01, decode_batch=(1,))
    runs = load_teachers(recipe.distill)
    tokenizer, task = opened(recipe)
    wrapped, total = make_distillation_task(task, recipe, runs, tokenizer), 0
    epoch = wrapped.epoch_batches(0)
    assert len(epoch) <= data_sample._SAMPLED_BATCHES, "all are looked at"
    for rows in epoch:
        for run, batch in zip(runs, wrapped.collate(rows).teachers, strict=True):
            if name == "translation" or name == "denoising":
                load = BatchShape(*batch.target.shape, batch.source.size(1), task.count_labels(batch))
            elif name == "classification":
                load = BatchShape(*batch.inputs.tokens.shape, label_count=len(rows))
            else:
                load = BatchShape(*batch.tokens.shape, label_count=task.count_labels(batch))
            total += sum(work.total for work in count_forward(run.config, load))
    assert made.operations.teachers == pytest.approx(2 * total / len(epoch), rel=0.01)
    assert made.operations.step - made.operations.teachers == pytest.approx(plain.operations.step, rel=0.01)
    held = sum(x.nbytes for run in runs for x in [*run.model.parameters(), *run.model.buffers()])
    assert made.memory == plain.memory._replace(teachers=held)
    assert made.memory.total == (plain.memory.total or 0) + held
    assert made.time is not None
    text = "\n".join(format_details(made))
    assert f"(3 x forward and {format_si(made.operations.teachers)}FLOPs of teachers)" in text
    assert f"\n  teachers    {format_si(held):>7}B\n" in text
    assert "teachers" not in "\n".join(format_details(plain))


def test_a_teacher_of_another_width_is_refused_as_training_refuses_it(home):
    with pytest.raises(UserError, match=r"the student has 16, the teacher 32"):
        estimate(taught("classification", ["a"], [32], "distill.hidden_weight=1"), probe=False)


def test_teachers_of_a_text_that_is_not_there_are_said_to_be_unknown(home):
    recipe = taught("classification", ["a"], [32])
    (home / "t.tsv").unlink()
    made = estimate(recipe, probe=False)
    assert made.memory.teachers == made.operations.teachers == 0
    assert "the cost of the teachers is unknown without the text" in made.notes


@pytest.mark.parametrize("context", [0, 65, 10**6])
def test_no_row_is_decoded_beyond_the_greatest_length(context):
    with pytest.raises(UserError, match=rf"context_len is {context}, expected 1 to max_len \(64\)"):
        estimate(preset_config("tiny", 50, max_len=64), probe=False, context_len=context)
    assert estimate(preset_config("tiny", 50, max_len=64), probe=False, context_len=64).decoding is not None


def test_a_rank_without_a_split_is_this_model():
    config = ModelConfig(kind="decoder", vocab_size=50, d_model=32, n_layers=3, n_heads=2)
    made = estimate(config, probe=False, batch_size=4, seq_len=16, recompute="blocks", layout=None)
    assert made.rank is not None and made.rank.time is None
    memory = made.rank.memory
    assert (memory.weights, memory.gradients, memory.loss) == (
        made.memory.weights,
        made.memory.gradients,
        made.memory.loss,
    )
    kept = estimate_training_memory(
        config, BatchShape(4, 16), Choice("adamw"), precision=made.precision, recompute=True
    )
    assert (memory.activations, memory.recompute_buffer) == (kept.activations, kept.block_activations)
    assert memory.activations is not None and made.memory.activations is not None
    assert 3 * 4 * 16 * 32 * 4 <= memory.activations < made.memory.activations
    with pytest.raises(UserError, match=r"unknown recompute 'block'; did you mean 'blocks'\?"):
        estimate(config, probe=False, recompute="block")  # type: ignore[arg-type]
    plain = estimate(config, probe=False, batch_size=4, seq_len=16)
    assert plain.rank is None and plain.traffic is None
    timed = estimate(config, probe=False, batch_size=4, seq_len=16, hardware="a100")
    assert timed.rank is not None and timed.rank.time is not None
    assert timed.precision == "bf16"
    assert timed.rank.memory.activations == timed.memory.activations
    # half of the batch in each of two micro-batches keeps half of the activations
    halves = estimate(
        config, probe=False, batch_size=4, seq_len=16, hardware="a100", layout=ParallelLayout(micro_batches=2)
    )
    assert halves.rank is not None and halves.rank.memory.activations is not None
    assert timed.rank.memory.activations is not None
    weights_in_bf16 = sum(2 * p for p in (3 * 12 * 32 * 32,))  # saved with the activations
    assert (
        halves.rank.memory.activations - weights_in_bf16
        == (timed.rank.memory.activations - weights_in_bf16) / 2
    )


def test_a_rank_recomputes_as_the_recipe_does(home):
    recipe = load_recipe("translation.yaml", ["train.recompute=blocks"])
    layout = ParallelLayout(data_parallel=2)
    made = estimate(recipe, probe=False, layout=layout)
    assert made.rank is not None and made.rank.recompute == "blocks"
    assert made.rank.memory.activations == made.memory.activations
    assert made.rank.memory.recompute_buffer == made.memory.block_activations
    changed = estimate(recipe, probe=False, layout=layout, recompute="none")
    assert changed.rank is not None and changed.rank.memory.recompute_buffer == 0
    assert made.memory.activations and changed.rank.memory.activations
    assert changed.rank.memory.activations > made.memory.activations
