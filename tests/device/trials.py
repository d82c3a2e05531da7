"""Trials of a comparison that train on a second device are measured and timed on it."""

import pytest
from tests.device.ghost import DEVICE, ghost_device
from tests.train.conftest import Notes, no_fsync
from tests.train.distributed.rank_runs import corpus_dir, recipe_of

from polyhead.compare import io as io_module
from polyhead.compare import trial
from polyhead.compare.io import read_json_file, write_json_file
from polyhead.compare.tasks.base import COMPARED_TASKS, get_compared_task
from polyhead.compare.trial import run_trial
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distill import DistillationTask
from polyhead.train.run_training import run_training

__all__ = ["corpus_dir", "no_fsync"]
pytestmark = pytest.mark.usefixtures("no_fsync")


def measure_trial(recipe, budget, tokenizer):
    data = recipe.data.model_copy(update={"test": recipe.data.valid, "target_lang": "en"})
    recipe = recipe.model_copy(update={"data": data})
    if not tokenizer.is_dir():
        texts = TASK.get(recipe.task.name).iter_texts(recipe)
        train_tokenizer(texts, recipe.tokenizer.kind, recipe.tokenizer.vocab_size).save(tokenizer)
    trial = {"recipe": recipe.model_dump(mode="json"), "budget": budget, "tokenizer": str(tokenizer)}
    write_json_file(recipe.out / io_module.TRIAL_FILE, trial | {"steps": None})
    assert run_trial(recipe.out)
    actual = read_json_file(recipe.out / io_module.RESULT_FILE)
    assert actual["status"] == "done", actual["message"]
    return actual


@pytest.mark.parametrize("task", COMPARED_TASKS.names())
def test_trials_match_the_cpu(task, corpus_dir):
    budget, tokenizer = ("steps", 4), corpus_dir / f"tokenizer-{task}"
    cpu_recipe = recipe_of(corpus_dir, task, f"cell-{task}-here", device="cpu")
    expected = measure_trial(cpu_recipe, budget, tokenizer)
    with ghost_device():
        device_recipe = recipe_of(corpus_dir, task, f"cell-{task}-there", device=str(DEVICE))
        actual = measure_trial(device_recipe, budget, tokenizer)
    assert actual.keys() == expected.keys()
    for name in ("parameters", "flops_per_token", "cache_per_token", "cache_constant", "dead"):
        assert actual[name] == expected[name], name
    for measure in get_compared_task(task).measures:
        assert actual[measure.name] == pytest.approx(expected[measure.name], rel=1e-3), measure.name
    assert (actual["decode_tokens_per_s"] is None) == (expected["decode_tokens_per_s"] is None)


def test_time_budget_is_probed_on_the_device(corpus_dir, monkeypatch):
    devices = []
    check_memory = trial.check_memory

    def rehearse(training, strategy, config):
        assert isinstance(strategy.task, DistillationTask)
        models = (training.model, *(teacher.run.model for teacher in strategy.task.teachers))
        devices.extend(p.device for one in models for p in one.parameters())
        check_memory(training, strategy, config)

    monkeypatch.setattr(trial, "check_memory", rehearse)
    monkeypatch.setattr(trial, "PROBE_SHARE", 0.0)
    monkeypatch.setattr(trial, "MIN_PROBE_SECONDS", 0.1)
    teacher = recipe_of(corpus_dir, "language-model", "teacher", precision="fp32", device="cpu")
    run_training(teacher, report=Notes())
    with ghost_device():
        student = recipe_of(corpus_dir, "language-model", "student", device=str(DEVICE))
        settings = student.model_dump(mode="json") | {"distill": {"teacher": str(teacher.out)}}
        recipe = Recipe.model_validate(settings)
        assert measure_trial(recipe, ("time", 5.0), teacher.out)["seconds_per_step"] > 0
    assert set(devices) == {DEVICE}
