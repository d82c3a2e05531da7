import json
from pathlib import Path

import pytest
import torch

import polyhead as ph
from polyhead.config.model import ModelConfig, ModelSpec
from polyhead.config.recipe import Recipe, read_recipe
from polyhead.core.errors import UserError
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config
from polyhead.nn import validate_model
from polyhead.nn.validate_model import check_model
from polyhead.run.recipe import load_recipe, validate_recipe
from polyhead.run.run_directory import read_run_config

SIZES = {"kind": "decoder", "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}
INVALID = SIZES | {"block": "lstm", "position": "rope"}
OVERRIDES = ["model.block=lstm", "model.position=rope"]
MESSAGE = (
    "position 'rope' acts on self-attention, but blocks lstm have none: use none, or one that is added to "
    "the embeddings, such as sinusoidal or learned"
)
DATA = {"train": "a.txt", "valid_fraction": 0.1}
TREE = {"task": "language-model", "data": DATA, "train": {"steps": 1}, "model": SIZES}
INVALID_TREE = TREE | {"model": INVALID}


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a dog barks and a cat runs\n" * 99)
    Path("valid.yaml").write_text(json.dumps(TREE))
    Path("invalid.yaml").write_text(json.dumps(INVALID_TREE))


def test_invalid_configs_are_data_and_refused_with_files():
    config = ModelConfig(vocab_size=9, **INVALID)
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    for build in (check_model, ph.build):
        with pytest.raises(UserError) as error:
            build(config)
        assert str(error.value) == MESSAGE
    spec = ModelSpec(**SIZES)
    assert check_model(spec) is spec
    torch.manual_seed(3)
    state = torch.get_rng_state()
    check_model(ModelConfig(vocab_size=9, d_model=16, n_heads=2, feed_forward="moe", pooling=None))
    assert torch.equal(torch.get_rng_state(), state)
    config = ModelConfig(vocab_size=9, **INVALID)
    Path("config.json").write_text(json.dumps({"model_type": "polyhead", **config.model_dump(mode="json")}))
    with pytest.raises(UserError) as error:
        read_run_config(Path())
    assert str(error.value) == f"config.json: {MESSAGE}"
    fields = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    fields |= {"vocab_size": 9, "max_position_embeddings": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    with pytest.raises(UserError, match=r"^b\.json: head_dim must be even for rope, .*, got 3 "):
        to_model_config(FAMILY.get("llama"), ConfigReader(fields, "b.json"))


@pytest.mark.parametrize(
    "read",
    [
        lambda: load_recipe("invalid.yaml"),
        lambda: load_recipe("invalid.yaml", from_run=True),
        lambda: load_recipe("valid.yaml", OVERRIDES),
        lambda: validate_recipe(INVALID_TREE),
        lambda: ph.train("invalid.yaml"),
        lambda: ph.train("valid.yaml", *OVERRIDES),
        lambda: ph.train(Recipe(**INVALID_TREE)),
        lambda: ph.compare("invalid.yaml", vary={"norm": ["rmsnorm"]}),
        lambda: ph.estimate("invalid.yaml"),
        lambda: ph.estimate(Recipe(**INVALID_TREE)),
        lambda: ph.estimate(ModelConfig(vocab_size=9, **INVALID)),
        lambda: ph.init_recipe("a.txt", *OVERRIDES),
    ],
)
def test_invalid_recipe_is_refused_where_it_is_read(read):
    with pytest.raises(UserError) as error:
        read()
    assert str(error.value) == f"model: {MESSAGE}" and not Path("runs").exists()


COMMANDS = ["train valid.yaml", "compare valid.yaml --vary norm=rmsnorm", "estimate valid.yaml"]


@pytest.mark.parametrize("command", [*COMMANDS, "estimate gpt2", "init a.txt"])
def test_verbs_refuse_invalid_overrides_in_one_line(command, cli):
    assert f"model: {MESSAGE}\n" in cli(*command.split(), *OVERRIDES, code=2).err


@pytest.mark.parametrize(
    ("read", "n_checks"),
    [
        (lambda cli: read_recipe("invalid.yaml"), 0),
        (lambda cli: load_recipe("valid.yaml"), 1),
        (lambda cli: validate_recipe(TREE), 1),
        (lambda cli: load_recipe("valid.yaml").model.with_vocabulary(99), 1),
        (lambda cli: ph.estimate("valid.yaml", probe=False), 1),
        (lambda cli: cli("estimate", "valid.yaml", "--no-probe"), 1),
        (lambda cli: ph.init_recipe("a.txt"), 1),
        (lambda cli: ph.train("valid.yaml", "tokenizer.kind=byte", quiet=True), 1),
    ],
)
def test_recipe_is_checked_once(read, n_checks, cli, monkeypatch):
    checks, build = [], validate_model.build_sample_layers

    def count_and_build(config):
        checks.extend([config] if type(config) is ModelSpec else [])
        return build(config)

    monkeypatch.setattr(validate_model, "build_sample_layers", count_and_build)
    read(cli)
    assert len(checks) == n_checks
