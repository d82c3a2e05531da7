"""Runs that learn, and are used, on another device."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.device.ghost import DEVICE, Ghost, haunted
from tests.train.conftest import Notes, unsynced
from tests.train.distributed.rank_runs import place, recipe_of

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.device import prefetch_to_device, resolve_device
from polyhead.train import prefetch
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

__all__ = ["place", "unsynced"]
pytestmark = pytest.mark.usefixtures("unsynced")
TASKS = ("translation", "language-model", "masked-lm", "denoising", "classification")
PROMPTS = ["the king", "a dog barks at", "two"]


def learned(recipe: Recipe) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    run_training(recipe, report=Notes())
    return read_metrics(recipe.out / "metrics.jsonl"), load_file(recipe.out / "model.safetensors")


@pytest.mark.parametrize("task", TASKS)
def test_a_run_learns_there_what_it_learns_here(task: str, place: Path) -> None:
    """Losses, measures, averages, checkpoints: with everything moved and moved back."""
    wanted = learned(recipe_of(place, task, f"{task}-here", ema=0.9, precision="fp32"))
    with haunted():
        recipe = recipe_of(place, task, f"{task}-there", ema=0.9, precision="fp32", device=str(DEVICE))
        found = learned(recipe)
        again, _ = run_training(
            recipe, resume=True, report=Notes()
        )  # the finished one is opened and measured
        assert all(isinstance(p, Ghost) for p in again.model.parameters())
    assert len(found[0]) == len(wanted[0])
    for a, b in zip(found[0], wanted[0], strict=True):
        for name in a.keys() & {"loss", "ppl", "grad_norm", "accuracy", "f1", "word_ppl"}:
            assert a[name] == pytest.approx(b[name], rel=1e-4), name
    assert found[1].keys() == wanted[1].keys()
    for name, weight in found[1].items():
        torch.testing.assert_close(weight, wanted[1][name], rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, Path]:
    """A trained run of each task."""
    recipes = {task: recipe_of(place, task, f"{task}-used", precision="fp32") for task in TASKS}
    for recipe in recipes.values():
        run_training(recipe, report=Notes())
    return {task: recipe.out for task, recipe in recipes.items()}


def both(path: Path, use: Any) -> tuple[Any, Any]:
    """What a use of a run gives on the CPU and there."""
    here = use(ph.load(path, device="cpu"))
    with haunted():
        return here, use(ph.load(path, device=str(DEVICE)))


@pytest.mark.parametrize("cache", [name for name in CACHE.names() if name not in ("state", "low_rank")])
def test_a_language_model_writes_the_same_from_any_cache(cache: str, runs: dict[str, Path]) -> None:
    def use(run: ph.Run) -> Any:
        drawn = run.generate(PROMPTS, n=2, seed=3, max_new_tokens=6, temperature=0.8, top_p=0.9, cache=cache)
        return drawn, run.generate(PROMPTS, max_new_tokens=6, temperature=0.0, repetition_penalty=1.3)

    here, there = both(runs["language-model"], use)
    assert here == there


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_beams_and_scores_are_the_same(cache: str, runs: dict[str, Path]) -> None:
    def use(run: ph.Run) -> Any:
        return run.translate(PROMPTS, beam_size=3, n_best=2, cache=cache)

    here, there = both(runs["translation"], use)
    assert here == there

    def likely(run: ph.Run) -> Any:
        return run.generate(PROMPTS, beam_size=3, cache=cache, max_new_tokens=5)

    here, there = both(runs["language-model"], likely)
    assert here == there


def test_the_other_uses_are_the_same(runs: dict[str, Path]) -> None:
    pairs = PROMPTS, ["der König", "ein Hund", "zwei"]
    for task, use in (
        ("translation", lambda run: [s.log_prob for s in run.score(*pairs)]),
        ("translation", lambda run: run.cross_attention("the king", "der König")[2].cpu()),
        ("language-model", lambda run: [s.log_prob for s in run.score(PROMPTS)]),
        ("language-model", lambda run: run.attention_maps("the king")["self"][2].cpu()),
        ("masked-lm", lambda run: [f.probability for f in run.fill_mask(["the <mask> of"])[0][0]]),
        ("masked-lm", lambda run: run.embed(PROMPTS).cpu()),
        ("classification", lambda run: [list(c.probabilities.values()) for c in run.classify(PROMPTS)]),
    ):
        here, there = both(runs[task], use)
        torch.testing.assert_close(torch.as_tensor(there), torch.as_tensor(here), rtol=1e-4, atol=1e-5)


def test_a_draft_guesses_there(runs: dict[str, Path]) -> None:
    guess = {"name": "draft", "run": str(runs["language-model"]), "tokens": 2}

    def use(run: ph.Run) -> Any:
        return run.generate(PROMPTS, max_new_tokens=6, temperature=0.0, speculative=guess)

    here, there = both(runs["language-model"], use)
    assert here == there


@pytest.mark.parametrize(("task", "device"), [("classification", "auto"), ("language-model", "cpu")])
def test_a_plan_with_teachers_is_made_on_the_cpu(
    task: str, device: str, place: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where "auto" is another device, as with a GPU: student and teacher are probed side by side."""
    whole = recipe_of(place, task, "student", device=device).model_dump(mode="json", exclude={"tokenizer"})
    teacher = str(runs[task])
    recipe = Recipe.model_validate(
        whole
        | {"init_from": teacher, "model": {}, "distill": {"teacher": [teacher]}, "out": place / "student"}
    )
    monkeypatch.setattr(
        "polyhead.run.load.resolve_device", lambda name: DEVICE if name == "auto" else resolve_device(name)
    )
    with haunted():
        assert ph.load(teacher).device == DEVICE
        made = ph.estimate(recipe, seconds=0.01, decode_batch=(1,))
    assert made.time is not None
    assert made.memory.teachers


def test_a_device_that_is_not_there_is_refused(runs: dict[str, Path]) -> None:
    for name in ("cuda:7", "gpu", "cdua", "meta"):
        with pytest.raises(UserError, match=f"device '{name}' is not available to torch; available: cpu"):
            ph.load(runs["translation"], device=name)
    with haunted(), pytest.raises(UserError, match="int8 is for the CPU"):
        ph.load(runs["translation"], device=str(DEVICE), dtype="int8")


class Interrupted(Notes):
    """Ctrl-C after three steps."""

    def log_train(self, row: Any) -> None:
        super().log_train(row)
        if row["step"] == 3:
            signal.raise_signal(signal.SIGINT)


def test_batches_that_are_copied_ahead_change_no_bit(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout; also of a run that is stopped in between and goes on."""
    task, usual = (
        "language-model",
        {"steps": 6, "model": {"dropout": 0.1}, "precision": "fp32", "ema": 0.9, "device": str(DEVICE)},
    )
    copied: list[torch.Tensor] = []

    def recorded(batches: Any, device: torch.device) -> None:
        prefetch_to_device(batches, device)
        copied.extend(x for batch in batches for x in batch if isinstance(x, torch.Tensor))

    monkeypatch.setattr(prefetch, "prefetch_to_device", recorded)
    with haunted():
        found = learned(recipe_of(place, task, f"{task}-ahead", **usual))
        assert copied
        assert not any(hasattr(x, "device_copy") for x in copied)  # they were used
        cut = recipe_of(place, task, f"{task}-cut", **usual)
        _, outcome = run_training(cut, report=Interrupted())
        assert (outcome.status, outcome.step) == ("interrupted", 3)
        run_training(cut, resume=True, report=Notes())
        monkeypatch.setattr(prefetch.BatchPrefetcher, "prefetch", lambda *_: None)
        wanted = learned(recipe_of(place, task, f"{task}-usual", **usual))
    resumed = load_file(cut.out / "model.safetensors")
    for name, weight in wanted[1].items():
        assert torch.equal(found[1][name], weight), name
        assert torch.equal(resumed[name], weight), name
    assert [row.get("loss") for row in found[0]] == [row.get("loss") for row in wanted[0]]
