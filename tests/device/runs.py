"""Runs that are trained and used on a second device."""

import signal
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from tests.device.ghost import DEVICE, Ghost, ghost_device
from tests.train.conftest import Notes, no_fsync
from tests.train.distributed.rank_runs import corpus_dir, recipe_of

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.device import move_batch, resolve_device
from polyhead.train import prefetch
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

__all__ = ["corpus_dir", "no_fsync"]
pytestmark = pytest.mark.usefixtures("no_fsync")
TASKS = ("translation", "language-model", "masked-lm", "denoising", "classification")
PROMPTS = ["the king", "a dog barks at", "two"]


def train_run(recipe):
    run_training(recipe, report=Notes())
    return read_metrics(recipe.out / "metrics.jsonl"), load_file(recipe.out / "model.safetensors")


@pytest.mark.parametrize("task", TASKS)
def test_runs_match_the_cpu(task, corpus_dir):
    expected = train_run(recipe_of(corpus_dir, task, f"{task}-here", ema=0.9, precision="fp32"))
    with ghost_device():
        recipe = recipe_of(corpus_dir, task, f"{task}-there", ema=0.9, precision="fp32", device=str(DEVICE))
        actual = train_run(recipe)
        resumed_run, _ = run_training(
            recipe, resume=True, report=Notes()
        )  # loads and evaluates the finished run
        assert all(isinstance(p, Ghost) for p in resumed_run.model.parameters())
    assert len(actual[0]) == len(expected[0])
    for a, b in zip(actual[0], expected[0], strict=True):
        for name in a.keys() & {"loss", "ppl", "grad_norm", "accuracy", "f1", "word_ppl"}:
            assert a[name] == pytest.approx(b[name], rel=1e-4), name
    assert actual[1].keys() == expected[1].keys()
    for name, weight in actual[1].items():
        torch.testing.assert_close(weight, expected[1][name], rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def runs(corpus_dir):
    recipes = {task: recipe_of(corpus_dir, task, f"{task}-used", precision="fp32") for task in TASKS}
    for recipe in recipes.values():
        run_training(recipe, report=Notes())
    return {task: recipe.out for task, recipe in recipes.items()}


def use_on_both_devices(path, use):
    on_cpu = use(ph.load(path, device="cpu"))
    with ghost_device():
        return on_cpu, use(ph.load(path, device=str(DEVICE)))


def sample(run, cache):
    samples = run.generate(PROMPTS, n=2, seed=3, max_new_tokens=6, temperature=0.8, top_p=0.9, cache=cache)
    return samples, run.generate(PROMPTS, max_new_tokens=6, temperature=0.0, repetition_penalty=1.3)


def translate(run, cache):
    return run.translate(PROMPTS, beam_size=3, n_best=2, cache=cache)


def search(run, cache):
    return run.generate(PROMPTS, beam_size=3, max_new_tokens=5, cache=cache)


@pytest.mark.parametrize(
    ("task", "use", "cache"),
    [
        *(("language-model", sample, name) for name in CACHE.names() if name not in ("state", "low_rank")),
        *(("translation", translate, name) for name in ("static", "paged")),
        *(("language-model", search, name) for name in ("static", "paged")),
    ],
)
def test_generation_matches_the_cpu(task, use, cache, runs):
    on_cpu, on_device = use_on_both_devices(runs[task], partial(use, cache=cache))
    assert on_cpu == on_device


def test_scores_and_embeddings_match_the_cpu(runs):
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
        on_cpu, on_device = use_on_both_devices(runs[task], use)
        torch.testing.assert_close(torch.as_tensor(on_device), torch.as_tensor(on_cpu), rtol=1e-4, atol=1e-5)


def test_draft_model_on_the_device(runs):
    guess = {"name": "draft", "run": str(runs["language-model"]), "tokens": 2}
    options = {"max_new_tokens": 6, "temperature": 0.0, "speculative": guess}
    path = runs["language-model"]
    on_cpu, on_device = use_on_both_devices(path, lambda run: run.generate(PROMPTS, **options))
    assert on_cpu == on_device


@pytest.mark.parametrize(("task", "device"), [("classification", "auto"), ("language-model", "cpu")])
def test_estimate_with_teachers_runs_on_the_cpu(task, device, corpus_dir, runs, monkeypatch):
    """If "auto" is another device, as with a GPU, student and teacher are measured on the CPU."""
    student = recipe_of(corpus_dir, task, "student", device=device)
    settings = student.model_dump(mode="json", exclude={"tokenizer"})
    teacher = str(runs[task])
    settings |= {"init_from": teacher, "model": {}, "distill": {"teacher": [teacher]}}
    recipe = Recipe.model_validate(settings | {"out": corpus_dir / "student"})
    monkeypatch.setattr(
        "polyhead.run.load.resolve_device", lambda name: DEVICE if name == "auto" else resolve_device(name)
    )
    with ghost_device():
        assert ph.load(teacher).device == DEVICE
        estimate = ph.estimate(recipe, seconds=0.01, decode_batch=(1,))
    assert estimate.time is not None
    assert estimate.memory.teachers


def test_unavailable_devices_are_rejected(runs):
    for name in ("cuda:7", "gpu", "cdua", "meta"):
        with pytest.raises(UserError, match=f"device '{name}' is not available to torch; available: cpu"):
            ph.load(runs["translation"], device=name)
    with ghost_device(), pytest.raises(UserError, match="int8 is for the CPU"):
        ph.load(runs["translation"], device=str(DEVICE), dtype="int8")


class Interrupted(Notes):
    def log_train(self, row):
        super().log_train(row)
        if row["step"] == 3:
            signal.raise_signal(signal.SIGINT)


def test_prefetched_batches_give_the_same_bits(corpus_dir, monkeypatch):
    task, options = (
        "language-model",
        {"steps": 6, "model": {"dropout": 0.1}, "precision": "fp32", "ema": 0.9, "device": str(DEVICE)},
    )
    prefetched = []

    def record_prefetch(batch, device):
        prefetched.append(move_batch(batch, device))
        return prefetched[-1]

    monkeypatch.setattr(prefetch, "move_batch", record_prefetch)
    with ghost_device():
        actual = train_run(recipe_of(corpus_dir, task, f"{task}-ahead", **options))
        assert prefetched
        interrupted_recipe = recipe_of(corpus_dir, task, f"{task}-cut", **options)
        _, outcome = run_training(interrupted_recipe, report=Interrupted())
        assert (outcome.status, outcome.step) == ("interrupted", 3)
        run_training(interrupted_recipe, resume=True, report=Notes())
        monkeypatch.setattr(prefetch.BatchPrefetcher, "prefetch", lambda *_: None)
        expected = train_run(recipe_of(corpus_dir, task, f"{task}-usual", **options))
    resumed_weights = load_file(interrupted_recipe.out / "model.safetensors")
    for name, weight in expected[1].items():
        assert torch.equal(actual[1][name], weight), name
        assert torch.equal(resumed_weights[name], weight), name
    assert [row.get("loss") for row in actual[0]] == [row.get("loss") for row in expected[0]]
