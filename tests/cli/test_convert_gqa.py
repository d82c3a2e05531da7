import re

import pytest
import torch
from tests.train.conftest import Notes, small_recipe, write_corpus

import polyhead
from polyhead.checkpoint import checkpoint
from polyhead.cli.convert_gqa import derive_recipe, measure_model
from polyhead.config.model import ModelConfig
from polyhead.models import build
from polyhead.models.pool_kv_heads import pool_kv_heads
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.train.run_training import run_training


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A trained run with four heads."""
    directory = tmp_path_factory.mktemp("convert")
    write_corpus(directory)
    settings = {"steps": 20, "ema": None, "average_checkpoints": 2, "save_every": 5}
    recipe = small_recipe(directory, **settings, model={"n_heads": 4})
    run_training(recipe, report=Notes())
    return recipe.out


def test_converted_run_is_measured_and_trains_from_means(run_dir, tmp_path, cli):
    out = tmp_path / "gqa"
    text = cli("convert-gqa", run_dir, out, "--kv-heads", 2, "--uptrain", 0.5).out
    old, new = polyhead.load(run_dir), polyhead.load(out)
    expected = named_state(pool_kv_heads(old.model, 2))
    assert all(torch.equal(expected[name], tensor) for name, tensor in named_state(new.model).items())
    rows = re.findall(r"^(.+?) +(\S+)  ->  +(\S+)$", text, re.M)
    table = {name: (old_value, new_value) for name, old_value, new_value in rows}
    for column, run in enumerate((old, new)):
        assert table["parameters"][column] == f"{sum(p.numel() for p in run.model.parameters()):,}"
        data = run.recipe.data
        texts = [(data.root / file).read_text().splitlines() for file in data.valid]
        assert float(table["valid ppl"][column]) == pytest.approx(run.perplexity(*texts), rel=1e-4)
    # one layer, 4 bytes, keys and values of 4 or 2 heads of 4
    assert table["cache, bytes per token"] == ("128", "64")
    assert text.endswith(f"continue with: polyhead train {out}/recipe.yaml --resume\n")
    assert "| valid ppl |" in (out / "README.md").read_text()

    recipe = load_recipe(out / "recipe.yaml")
    assert (recipe.model.n_kv_heads, recipe.train.steps) == (2, 10)
    assert recipe.train.schedule.options["warmup"] == 4
    assert checkpoint.list_steps(out / "checkpoints") == [0]
    notes = Notes()
    run, outcome = run_training(recipe, resume=True, report=notes)
    assert outcome.step == 10 and "resumed at step 0 of 10" in notes.lines
    assert "mean of the checkpoints 5, 10" in (out / "README.md").read_text()
    fresh_recipe = load_recipe(out / "recipe.yaml").model_copy(update={"out": tmp_path / "fresh"})
    fresh, _ = run_training(fresh_recipe, report=Notes(), tokenizer=new.tokenizer)
    name = "decoder.layers.0.cross.k_proj.weight"
    distance, fresh_distance = ((named_state(r.model)[name] - expected[name]).norm() for r in (run, fresh))
    assert distance < 0.5 * fresh_distance  # it started from the means, not from random weights


def test_run_without_text_is_converted_unmeasured(tiny, run_dir, tmp_path, cli):
    out = cli("convert-gqa", tiny, tmp_path / "a", "--kv-heads", 1).out
    assert "quality not measured: the run has no recipe" in out
    assert polyhead.load(tmp_path / "a").config.n_kv_heads == 1
    run = polyhead.load(run_dir)
    data = run.recipe.data.model_copy(update={"root": tmp_path / "nowhere"})
    recipe = run.recipe.model_copy(update={"data": data})
    Run(run.model, run.tokenizer, run.generation, recipe).save(tmp_path / "b")
    out = cli("convert-gqa", tmp_path / "b", tmp_path / "c", "--kv-heads", 1).out
    assert "quality not measured: data.root: no directory" in out
    assert "can be used, but not trained further" in out
    assert not (tmp_path / "c" / "checkpoints").exists()
    assert polyhead.load(tmp_path / "c").translate(["ein hund"])
    cli("train", tmp_path / "c" / "recipe.yaml", "--resume", code=2)  # not silently from random weights

    weights = (run_dir / "model.safetensors").read_bytes()
    message = cli.error("convert-gqa", run_dir, run_dir, "--kv-heads", 2)
    assert "is not empty; choose another directory" in message
    assert (run_dir / "model.safetensors").read_bytes() == weights
    # all weights are trained, also if those of the run were trained with adapters alone
    recipe = load_recipe(run_dir / "recipe.yaml", ["init_from=runs/first", "train.lora.r=2"])
    new_recipe = derive_recipe(recipe, 2, 0.5, tmp_path)
    assert recipe.train.lora and new_recipe.train.lora is None
    assert (new_recipe.model.n_kv_heads, new_recipe.train.steps, new_recipe.out) == (2, 10, tmp_path)


LINEAR, GRU = [{"attention": "linear"}, {}], [{"block": "gru"}]


@pytest.mark.parametrize(("pattern", "expected"), [(LINEAR, "128"), (GRU, None)])
def test_layers_with_state_use_no_cache_per_token(pattern, expected):
    sizes = {"vocab_size": 9, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 4, "max_len": 8}
    config = ModelConfig(kind="decoder", layer_pattern=pattern, **sizes)
    # two layers, 4 bytes, keys and values of 2 heads of 4
    assert measure_model(build(config, seed=1), None).get("cache, bytes per token") == expected
