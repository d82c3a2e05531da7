"""A model whose parts do not fit together is refused wherever a recipe or a config is read, once, with one
message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyhead as ph
from polyhead.cli import main
from polyhead.config.model import ModelConfig, ModelSpec
from polyhead.config.recipe import Recipe, read_recipe
from polyhead.core.errors import UserError
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config
from polyhead.nn import validate_model
from polyhead.nn.validate_model import check_model
from polyhead.run.recipe import load_recipe, validate_recipe
from polyhead.run.run_directory import read_run_config

SIZES = {"kind": "decoder", "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}
UNFIT = SIZES | {"block": "lstm", "position": "rope"}
CHANGES = ["model.block=lstm", "model.position=rope"]
MESSAGE = (
    "position 'rope' acts on self-attention, but blocks lstm have none: use none, or one that is added to "
    "the embeddings, such as sinusoidal or learned"
)
TREE = {
    "task": "language-model",
    "data": {"train": "a.txt", "valid_fraction": 0.1},
    "train": {"steps": 1},
    "model": SIZES,
}
UNFIT_TREE = TREE | {"model": UNFIT}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a dog barks and a cat runs\n" * 99)
    Path("fit.yaml").write_text(json.dumps(TREE))
    Path("unfit.yaml").write_text(json.dumps(UNFIT_TREE))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of recipes that are checked; families of published models are configs with a vocabulary."""
    checked: list[Any] = []
    build_layers = validate_model.build_sample_layers

    def count_and_build(config: ModelSpec) -> Any:
        checked.extend([config] if type(config) is ModelSpec else [])
        return build_layers(config)

    monkeypatch.setattr(validate_model, "build_sample_layers", count_and_build)
    return checked


def test_a_config_is_data_and_build_refuses_it() -> None:
    config = ModelConfig(vocab_size=9, **UNFIT)
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    for refuse in (check_model, ph.build):
        with pytest.raises(UserError) as caught:
            refuse(config)
        assert str(caught.value) == MESSAGE
    fit = ModelSpec(**SIZES)
    assert check_model(fit) is fit


def test_a_check_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_model(ModelConfig(vocab_size=9, d_model=16, n_heads=2, feed_forward="moe", pooling=None))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "read",
    [
        lambda: load_recipe("unfit.yaml"),
        lambda: load_recipe("unfit.yaml", from_run=True),
        lambda: load_recipe("fit.yaml", CHANGES),
        lambda: validate_recipe(UNFIT_TREE),
        lambda: ph.train("unfit.yaml"),
        lambda: ph.train("fit.yaml", *CHANGES),
        lambda: ph.train(Recipe(**UNFIT_TREE)),
        lambda: ph.compare("unfit.yaml", vary={"norm": ["rmsnorm"]}),
        lambda: ph.estimate("unfit.yaml"),
        lambda: ph.estimate(Recipe(**UNFIT_TREE)),
        lambda: ph.estimate(ModelConfig(vocab_size=9, **UNFIT)),
        lambda: ph.init_recipe("a.txt", *CHANGES),
    ],
)
def test_a_recipe_is_refused_where_it_is_read(read: Callable[[], object]) -> None:
    with pytest.raises(UserError) as caught:
        read()
    assert str(caught.value) == f"model: {MESSAGE}"
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "fit.yaml"],
        ["compare", "fit.yaml", "--vary", "norm=rmsnorm"],
        ["estimate", "fit.yaml"],
        ["estimate", "gpt2"],
        ["init", "a.txt"],
    ],
    ids=" ".join,
)
def test_verbs_refuse_it_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *CHANGES]) == 2
    assert f"model: {MESSAGE}\n" in capsys.readouterr().err


def test_the_config_of_a_run_or_a_published_model_is_refused_with_its_file() -> None:
    config = ModelConfig(vocab_size=9, **UNFIT)
    Path("config.json").write_text(json.dumps({"model_type": "polyhead", **config.model_dump(mode="json")}))
    with pytest.raises(UserError) as caught:
        read_run_config(Path())
    assert str(caught.value) == f"config.json: {MESSAGE}"
    fields = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8,
              "vocab_size": 9, "max_position_embeddings": 8, "rms_norm_eps": 1e-6,
              "hidden_act": "silu"}  # fmt: skip
    with pytest.raises(UserError, match=r"^b\.json: head_dim must be even for rope, .*, got 3 "):
        to_model_config(FAMILY.get("llama"), ConfigReader(fields, "b.json"))


@pytest.mark.parametrize(
    ("read", "n_checks"),
    [
        (lambda: read_recipe("unfit.yaml"), 0),
        (lambda: load_recipe("fit.yaml"), 1),
        (lambda: validate_recipe(TREE), 1),
        (lambda: load_recipe("fit.yaml").model.with_vocabulary(99), 1),
        (lambda: ph.estimate("fit.yaml", probe=False), 1),
        (lambda: main(["estimate", "fit.yaml", "--no-probe"]), 1),
        (lambda: ph.init_recipe("a.txt"), 1),
        (lambda: ph.train("fit.yaml", "tokenizer.kind=byte", quiet=True), 1),
    ],
)
def test_a_recipe_is_checked_once(checks: list[Any], read: Callable[[], object], n_checks: int) -> None:
    read()
    assert len(checks) == n_checks
