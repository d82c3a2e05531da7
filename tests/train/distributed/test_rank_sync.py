"""Tests of train/distributed/rank_sync.py."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, write_corpus
from tests.train.distributed.rank_runs import assert_close, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.several import together

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.train import loop
from polyhead.train import run_training as run_training_module
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


@pytest.mark.parametrize("when", ["at first", "later"])
def test_weights_that_drift_apart_become_those_of_the_first_rank(when: str, place: Path) -> None:
    """As on processors that round differently, only more."""
    recipe = recipe_of(place, "translation", f"drift-{when[-2:]}", steps=5, save_every=2)

    def work(ranks: ProcessGroup) -> str:
        if ranks.rank and when == "at first":
            make = run_training_module.build
            run_training_module.build = lambda config, seed: make(config, seed + 1)
        elif ranks.rank:
            real, calls = loop.train_step, [0]

            def drifting(training: TrainState, *arguments: Any) -> bool:
                calls[0] += 1
                done = real(training, *arguments)
                if calls[0] == 3:
                    with torch.no_grad():
                        for w in training.model.parameters():
                            w.add_(1e-3)
                return done

            loop.train_step = drifting  # type: ignore[assignment]
        learned: list[str] = []
        finish = run_training_module._finish

        def noting(run: Run, *arguments: Any) -> Any:  # in the end all have the average
            own = dict(run.model.named_parameters())
            learned.append(
                hashlib.sha256(b"".join(own[name].detach().numpy().tobytes() for name in own)).hexdigest()
            )
            return finish(run, *arguments)

        run_training_module._finish = noting
        run_training(recipe, report=Notes(), ranks=ranks)
        return learned[0]

    ends = together(2, work)
    assert [end.code for end in ends] == [0, 0], ends
    assert ends[0].said == ends[1].said
    if when == "at first":
        alone = recipe_of(place, "translation", "drift-none", steps=5, save_every=2)
        assert_close(trained(alone, 1)["final"], load_file(recipe.out / "model.safetensors"))


def test_machines_need_not_see_the_same_files(place: Path, tmp_path: Path) -> None:
    """Each of two machines tokenizes the text for itself; the other has nothing of the first one's
    directory.
    """
    recipe = recipe_of(place, "translation", "machines-1")
    whole = trained(recipe, 1)

    def work(ranks: ProcessGroup) -> list[str]:
        home = tmp_path / f"machine-{ranks.rank // 2}"
        home.mkdir(exist_ok=True)
        os.chdir(home)
        data = recipe.data.model_copy(update={"cache_dir": None})
        own = recipe.model_copy(update={"out": Path("run"), "data": data})
        train = own.train.model_copy(update={"steps": 4})
        run_training(own.model_copy(update={"train": train}), report=Notes(), ranks=ranks)
        run_training(own, report=Notes(), ranks=ranks, resume=True)
        return sorted(path.name for path in Path("run").iterdir())

    ends = together(4, work, machines=2)
    assert [end.code for end in ends] == [0] * 4, ends
    assert "model.safetensors" in ends[0].said
    assert ends[2].said == ends[3].said == ["data"]
    assert_close(whole["final"], load_file(tmp_path / "machine-0" / "run" / "model.safetensors"))


def test_a_tokenizer_reaches_other_machines_whatever_their_locale() -> None:
    script = textwrap.dedent(r"""
        import sys
        from types import SimpleNamespace
        from polyhead.core.registry import Choice
        from polyhead.tokenizers.train_tokenizer import train_tokenizer
        from polyhead.train.distributed.rank_sync import broadcast_tokenizer
        made, told = train_tokenizer(["ein H\u00fcnd bellt \u72d7"], Choice("char"), 60), []
        broadcast_tokenizer(SimpleNamespace(world_size=2, on_rank0=lambda files: told.append(files())), lambda: made)
        other = broadcast_tokenizer(SimpleNamespace(world_size=2, on_rank0=lambda files: told[0]), lambda: None)
        assert other.sha256 == made.sha256 and "\u72d7" in told[0]["tokenizer.json"]
        print(sys.getfilesystemencoding())
    """)  # noqa: E501
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=plain)
    assert done.stdout == "ascii\n", done.stderr[-500:]


def refused(place: Path, name: str, change: Callable[[Recipe], Recipe]) -> tuple[str, Any]:
    """What rank 1 says when its recipe is another one, and what rank 0 says."""
    recipe = recipe_of(place, "translation", name)

    def work(ranks: ProcessGroup) -> None:
        run_training(change(recipe) if ranks.rank else recipe, report=Notes(), ranks=ranks)

    first, other = together(2, work)
    assert (first.code, other.code) == (69, 2), (first, other)
    assert not checkpoint.list_steps(recipe.out / "checkpoints")
    assert not (recipe.out / "run.lock").exists()
    return str(other.said), first.said


def test_another_text_on_a_rank_is_refused(place: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path, n=41)
    change = {"root": tmp_path}
    said, heard = refused(
        place, "other-text", lambda r: r.model_copy(update={"data": r.data.model_copy(update=change)})
    )
    assert said.startswith("rank 1: the training text, the validation text: differs from rank 0; all")
    assert heard == ""  # it has been said already


def test_another_recipe_on_a_rank_is_refused(place: Path) -> None:
    change = {"lr": 1e-4}
    said, _ = refused(
        place, "other-recipe", lambda r: r.model_copy(update={"train": r.train.model_copy(update=change)})
    )
    assert said.startswith("rank 1: the recipe: differs from rank 0")


def test_missing_files_on_a_rank_are_told_by_it(place: Path, tmp_path: Path) -> None:
    change = {"root": tmp_path}
    said, _ = refused(
        place, "no-text", lambda r: r.model_copy(update={"data": r.data.model_copy(update=change)})
    )
    assert said.startswith("rank 1: data.train: no file 'train.de'")
