"""What is only needed at the end: a test text with mistakes is refused at the start, and what fails then
loses nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, small_recipe
from tests.train.distributed.rank_runs import place, recipe_of
from tests.train.task_runs import task_recipe, write_texts

import polyhead as ph
from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.train import run_training as run_training_module
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

__all__ = ["place"]
pytestmark = pytest.mark.usefixtures("unsynced")
LONG = "a cat and a dog and a cat and a dog and a cat and a dog"


def talk(answer: str) -> str:
    says = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": says}) + "\n"


def refused(recipe: Recipe, message: str, **data: Any) -> None:
    """Before the first step, in a directory that nothing was learned in."""
    recipe, notes = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)}), Notes()
    with pytest.raises(UserError, match=message):
        run_training(recipe, report=notes)
    assert notes.rows == []
    assert not checkpoint.list_steps(recipe.out / "checkpoints")


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        ("classification", {"a.tsv": "text\tlabel\na cat\t-1\n"}, r"a\.tsv: 0 of 1 texts; skipped 1 with an "
            r"unknown"),
        ("translation", {"a.de": "ein\nzwei\n", "a.en": "a\n"}, r"a\.de has 2 lines and a\.en has 1"),
        ("translation", {"a.de": "\n", "a.en": "\n"}, r"no usable pair in a\.de \+ a\.en"),
        ("chat", {"a.jsonl": talk(LONG * 9)}, r"a\.jsonl: 0 of 1 conversations, 0 answers; skipped 1 "
                                              r"overlong"),
        ("masked-lm", {"a.txt": " \n \n"}, r"a\.txt: no text"),
        ("denoising", {"a.txt": " \n \n"}, r"a\.txt: no text"),
        ("language-model", {"a.txt": " \n \n"}, r"a\.txt: no text"),
    ],
)  # fmt: skip
def test_a_test_text_with_mistakes_is_refused_before_anything_is_learned(
    task: str, files: dict[str, str], message: str, place: Path, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    names = [str(tmp_path / name) for name in files]
    refused(recipe_of(place, task, f"late-{task}-{len(names)}"), message, test=names)


def test_an_end_that_a_language_model_has_no_token_for_is_told_at_the_start(place: Path) -> None:
    recipe = recipe_of(place, "language-model", "late-ends")
    changed = recipe.generation.model_copy(update={"stop_tokens": ("<nuk>",)})
    refused(
        recipe.model_copy(update={"generation": changed}),
        "generation.stop_tokens: no token '<nuk>' in the vocabulary",
    )


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("task", ["classification", "chat", "denoising"])
def test_a_row_that_fits_no_batch_is_told_at_the_start(task: str, split: str, tmp_path: Path) -> None:
    """Also one that is only measured."""
    written = {
        "short.txt": "a cat\na dog\n", "long.txt": f"{LONG}\n", "short.jsonl": 2 * talk("a dog"),
            "long.jsonl": talk(LONG),
        "short.tsv": "text\tlabel\na cat\tcat\na dog\tdog\n", "long.tsv": f"text\tlabel\n{LONG}\tdog\n",
    }  # fmt: skip
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    kind = {"classification": "tsv", "chat": "jsonl"}.get(task, "txt")
    recipe = recipe_of(
        tmp_path, task, "run", max_tokens=25, model={"max_len": 128}, tokenizer={"vocab_size": 262}
    )
    texts = {name: [f"short.{kind}"] for name in ("train", "valid", "test")} | {split: [f"long.{kind}"]}
    refused(recipe, "max_tokens is 25, but row 0 alone has", **texts, max_len=128)


def test_what_fails_in_the_final_measures_loses_no_weights(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is there with its loss, and going on measures the rest."""
    whole, cut = (small_recipe(corpus, name, steps=4) for name in ("whole", "cut"))
    run_training(whole, report=Notes())

    def facts(*_: Any) -> dict[str, str]:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "collect_facts", facts)
        with pytest.raises(RuntimeError, match="out of luck"):
            run_training(cut, report=Notes())
    weights, wanted = (load_file(recipe.out / "model.safetensors") for recipe in (cut, whole))
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert ph.load(cut.out).translate(["ein hund"]) == ph.load(whole.out).translate(["ein hund"])
    card = (cut.out / "README.md").read_text()
    assert "| valid loss |" in card
    assert "bleu" not in card
    run_training(cut, resume=True, report=Notes())
    for name in ("README.md", "baseline.json"):
        assert (cut.out / name).read_bytes() == (whole.out / name).read_bytes()


@pytest.mark.parametrize(
    ("task", "train"),
    [
        ("language-model", {"lr": 1.0, "eval_every": 1, "schedule": {"name": "constant", "warmup": 1}}),
        ("language-model", {"ema": 0.9}),
        ("translation", {"average_checkpoints": 2, "save_every": 2}),
    ],
)
def test_lost_final_weights_are_those_that_training_chose(
    task: str,
    train: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not those of the newest checkpoint: training diverges, or the second candidate is better."""
    losses = iter([2.0, 1.0])
    monkeypatch.setattr(run_training_module, "measure_metric", lambda *_: next(losses))
    write_texts(tmp_path)
    recipe = task_recipe(tmp_path, task, tmp_path / "run", steps=8, **train)
    run_training(recipe, report=Notes())
    weights = load_file(recipe.out / "model.safetensors")
    chosen = json.loads((recipe.out / "manifest.json").read_text())["extra"]["weights"]
    assert chosen != {"steps": [8], "group": "model"}
    newest = load_file(recipe.out / "checkpoints" / "step-8" / "model.safetensors")
    assert not all(torch.equal(newest[name], weights[name]) for name in weights)
    (recipe.out / "model.safetensors").unlink()
    loaded = dict(ph.load(recipe.out).model.named_parameters())
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert "which was chosen when training ended" in caplog.text
