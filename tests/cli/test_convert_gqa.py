"""The new run is a run like any other: loaded, measured, and trained on from the means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.train.conftest import Notes, small_recipe, unsynced, write_corpus

import polyhead
from polyhead.checkpoint import checkpoint
from polyhead.cli import main
from polyhead.cli.convert_gqa import derive_recipe, measure_model
from polyhead.config.model import ModelConfig
from polyhead.models import build
from polyhead.models.pool_kv_heads import pool_kv_heads
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.train.run_training import run_training

__all__ = ["unsynced"]
pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def trained(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("convert")
    write_corpus(place)
    recipe = small_recipe(
        place, steps=20, ema=None, average_checkpoints=2, save_every=5, model={"n_heads": 4}
    )
    run_training(recipe, report=Notes())
    return recipe.out


def table(out: str) -> dict[str, tuple[str, str]]:
    rows = re.findall(r"^(.+?) +(\S+)  ->  +(\S+)$", out, re.M)
    return {name: (before, after) for name, before, after in rows}


def test_pooled_heads_learn_whole(trained: Path, tmp_path: Path) -> None:
    """Also those of a run whose other weights had learned with adapters alone."""
    recipe = load_recipe(trained / "recipe.yaml", ["init_from=runs/first", "train.lora.r=2"])
    assert recipe.train.lora
    made = derive_recipe(recipe, 2, 0.5, tmp_path)
    assert made is not None and made.train.lora is None
    assert (made.model.n_kv_heads, made.train.steps, made.out) == (2, 10, tmp_path)


def test_the_new_run_is_measured_beside_the_old_and_goes_on_from_the_means(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gqa"
    assert main(["convert-gqa", str(trained), str(out), "--kv-heads", "2", "--uptrain", "0.5"]) == 0
    said = capsys.readouterr().out
    old, new = polyhead.load(trained), polyhead.load(out)
    wanted = named_state(pool_kv_heads(old.model, 2))
    assert all(torch.equal(wanted[name], tensor) for name, tensor in named_state(new.model).items())
    shown = table(said)
    for name, run in zip((0, 1), (old, new), strict=True):
        assert shown["parameters"][name] == f"{sum(p.numel() for p in run.model.parameters()):,}"
        assert run.recipe is not None
        data = run.recipe.data
        texts = [(data.root / file).read_text().splitlines() for file in data.valid or []]
        assert float(shown["valid ppl"][name]) == pytest.approx(run.perplexity(*texts), rel=1e-4)
    assert shown["cache, bytes per token"] == (
        "128",
        "64",
    )  # one layer, 4 bytes, keys and values of 4 or 2 heads of 4
    assert said.endswith(f"continue with: polyhead train {out}/recipe.yaml --resume\n")
    assert "| valid ppl |" in (out / "README.md").read_text()

    recipe = load_recipe(out / "recipe.yaml")
    assert (recipe.model.n_kv_heads, recipe.train.steps, recipe.train.schedule.options["warmup"]) == (
        2,
        10,
        4,
    )
    assert checkpoint.list_steps(out / "checkpoints") == [0]
    notes = Notes()
    run, outcome = run_training(recipe, resume=True, report=notes)
    assert outcome.step == 10
    assert "resumed at step 0 of 10" in notes.said
    assert any("mean of the checkpoints 5, 10" in line for line in notes.said)
    started = load_recipe(out / "recipe.yaml").model_copy(update={"out": tmp_path / "fresh"})
    fresh, _ = run_training(started, report=Notes(), tokenizer=new.tokenizer)
    name = "decoder.layers.0.cross.k_proj.weight"
    moved, other = ((named_state(r.model)[name] - wanted[name]).norm() for r in (run, fresh))
    assert moved < 0.5 * other  # it began with the means, not with weights drawn anew


def test_without_its_text_it_is_converted_and_that_is_said(
    tiny: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert-gqa", str(tiny), str(tmp_path / "a"), "--kv-heads", "1"]) == 0
    said = capsys.readouterr().out
    assert "quality not measured: the run has no recipe" in said
    assert polyhead.load(tmp_path / "a").config.n_kv_heads == 1
    loaded = polyhead.load(trained)
    assert loaded.recipe is not None
    lost = loaded.recipe.data.model_copy(update={"root": tmp_path / "nowhere"})
    Run(
        loaded.model, loaded.tokenizer, loaded.generation, loaded.recipe.model_copy(update={"data": lost})
    ).save(tmp_path / "b")
    assert main(["convert-gqa", str(tmp_path / "b"), str(tmp_path / "c"), "--kv-heads", "1"]) == 0
    said = capsys.readouterr().out
    assert "quality not measured: data.root: no directory" in said
    assert "can be used, but not trained further" in said
    assert not (tmp_path / "c" / "checkpoints").exists()
    assert polyhead.load(tmp_path / "c").translate(["ein hund"])
    assert main(["train", str(tmp_path / "c" / "recipe.yaml"), "--resume"]) == 2  # not silently from nothing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kv-heads", "3"],
            "n_kv_heads (3) must be less than 4 and divide it: one of 1, 2",
        ),
        (["--kv-heads", "4"], "n_kv_heads (4) must be less than 4"),
    ],
)
def test_a_number_that_does_not_divide_is_refused_and_nothing_written(
    arguments: list[str], message: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert-gqa", str(trained), str(tmp_path / "x"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_directory_with_something_in_it_is_left_alone(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "model.safetensors").read_bytes()
    assert main(["convert-gqa", str(trained), str(trained), "--kv-heads", "2"]) == 2
    assert "is not empty; choose another directory" in capsys.readouterr().err
    assert (trained / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("turns", "wanted"), [([{"attention": "linear"}, {}], "128"), ([{"block": "gru"}], None)]
)
def test_layers_that_keep_a_state_take_no_bytes_a_token(
    turns: list[dict[str, str]], wanted: str | None
) -> None:
    config = ModelConfig(
        kind="decoder",
        vocab_size=9,
        d_model=16,
        n_heads=4,
        n_kv_heads=2,
        n_layers=4,
        max_len=8,
        layer_pattern=turns,
    )
    # two layers, 4 bytes, keys and values of 2 heads of 4
    assert measure_model(build(config, seed=1), None).get("cache, bytes per token") == wanted
