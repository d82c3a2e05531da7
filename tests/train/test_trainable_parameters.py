import re
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tests.train.conftest import Notes, equal_tensors, user_error
from tests.train.test_init_from import STEPS, tune, tuning_recipe
from tests.train.test_init_from import workdir as workdir

import polyhead as ph
from polyhead import Choice, build
from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.nn.int4_linear import Int4Linear
from polyhead.nn.lora import LoraLinear, merge_lora
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.train.distributed.mesh import MeshShape
from polyhead.train.init_from import load_init_weights
from polyhead.train.run_training import run_training
from polyhead.train.strategies.parallelize import find_obstacle
from polyhead.train.trainable_parameters import (
    add_lora,
    check_new_weights,
    parameter_summary,
    prepare_trainable,
)

pytestmark = pytest.mark.usefixtures("no_report")
SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": 11, "max_len": 12, "dropout": 0.0}
KINDS = {
    "encoder-decoder": {},
    "decoder": {"kind": "decoder"},
    "encoder": {"kind": "encoder"},
    "classifier": {"kind": "encoder", "labels": ["a", "b"]},
    "tied": {"kind": "decoder", "attention": {"name": "softmax", "tie": "kv"}},
}


def make_model(kind):
    return build(ph.ModelConfig(**SIZES, **KINDS[kind]), seed=1).eval()


@torch.no_grad()
def outputs(model):
    tokens = torch.arange(10).view(2, 5)
    return model(tokens, tokens) if model.config.kind == "encoder-decoder" else model(tokens)


def trainable_names(model) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [("q_proj", "v_proj"), ("attn", "ffn")])
def test_new_and_merged_adapters_keep_outputs(kind, parts):
    model = make_model(kind)
    names, initial_weights = list(named_state(model)), outputs(model)
    add_lora(model, LoraConfig(r=2, target_modules=parts), seed=3)
    assert torch.equal(outputs(model), initial_weights)
    assert any(isinstance(part, LoraLinear) for part in model.modules())
    for name, p in model.named_parameters():
        if name.endswith("lora_b"):  # as if trained
            torch.nn.init.normal_(p, std=0.3)
    expected = outputs(model)
    assert not torch.allclose(expected, initial_weights, atol=1e-3)
    merge_lora(model)
    torch.testing.assert_close(outputs(model), expected, rtol=0, atol=1e-5)
    assert list(named_state(model)) == names


def test_adapters_and_classification_head_are_trainable():
    model = make_model("classifier")
    add_lora(model, LoraConfig(r=2), seed=3)
    head = {name for name in named_state(model) if name.startswith(("pooler.", "classifier."))}
    layers = "encoder.stack.layers"
    linear = [f"{layers}.{i}.attn.{p}_proj" for i in (0, 1) for p in "qv"]
    assert trainable_names(model) == head | {f"{name}.lora_{x}" for name in linear for x in "ab"}
    # 4 linear layers of rank 2 between 16 and 16; a pooler of 16 x 16 + 16; classes of 2 x 16 + 2
    assert parameter_summary(model).endswith(f" parameters, {4 * 2 * 32 + 272 + 34:,} trainable")
    assert parameter_summary(make_model("decoder")).endswith("parameters")
    model = make_model("classifier")
    add_lora(model, LoraConfig(r=2, target_modules=["layers.1.ffn"], modules_to_save=["classifier"]), seed=3)
    modules = {name.rpartition(".")[0] for name in trainable_names(model)}
    assert modules == {"classifier", f"{layers}.1.ffn.up_proj", f"{layers}.1.ffn.down_proj"}


def test_adapters_are_drawn_from_seed_only(workdir):
    def draw_adapters(seed):
        model = make_model("decoder")
        torch.manual_seed(9)
        add_lora(model, LoraConfig(), seed)
        assert torch.equal(torch.rand(3), expected)  # the global generator is not used
        return torch.cat([p.detach().flatten() for n, p in model.named_parameters() if n.endswith("lora_a")])

    torch.manual_seed(9)
    expected = torch.rand(3)
    adapters = draw_adapters(3)
    assert torch.equal(adapters, draw_adapters(3)) and not torch.equal(adapters, draw_adapters(4))
    recipe = tuning_recipe(workdir, "x", lora={"r": 2}).model_dump()
    with user_error(r"train\.lora requires trained weights: set init_from\.run"):
        Recipe(**recipe | {"init_from": None})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"target_modules": ["q_prj"]}, r"target_modules: no linear .* named 'q_prj'; did you mean 'q_proj'"),
        ({"target_modules": ["embedding"]}, "no linear layer of the model is named 'embedding'"),
        # it is trained fully
        ({"target_modules": ["classifier"]}, "no linear layer of the model is named 'classifier'"),
        ({"r": 17}, r"train.lora.r: 17 is more than encoder.*q_proj has, a matrix of 16 x 16; at most 16"),
        ({"modules_to_save": ["poler"]}, r"modules_to_save: no part .* named 'poler'; did you mean 'pooler'"),
    ],
)
def test_unknown_modules_and_large_ranks_are_refused(config, message):
    with user_error(message):
        add_lora(make_model("classifier"), LoraConfig(**config), seed=3)


def test_packed_base_needs_groups_of_32_inputs():
    with user_error(r"train.lora.base: encoder\..*q_proj has 16 inputs, and int4 needs a multiple of 32"):
        prepare_trainable(make_model("classifier"), TrainConfig(steps=1, lora=LoraConfig(base="int4")))
    recipe = SimpleNamespace(train=TrainConfig(steps=1, lora=LoraConfig(base="int4")), distill=None)
    assert "are not split; set fp32" in str(find_obstacle(recipe, None, MeshShape(shard=2)))


@pytest.mark.parametrize("kind", ["classifier", "tied"])
def test_packed_base_is_frozen_and_counted(kind):
    config = ph.ModelConfig(**{**SIZES, "d_model": 32}, **KINDS[kind])
    models = [build(config, seed=1).eval() for _ in range(2)]
    for model, base in zip(models, ("fp32", "int4"), strict=True):
        prepare_trainable(model, TrainConfig(steps=1, lora=LoraConfig(r=2, base=base)))
    assert parameter_summary(models[0]) == parameter_summary(models[1])
    assert trainable_names(models[0]) == trainable_names(models[1])
    packed = [part for part in models[1].modules() if isinstance(part, Int4Linear)]
    adapted = [part for part in models[1].modules() if isinstance(part, LoraLinear)]
    n_projections = 3 if kind == "tied" else 4
    assert len(packed) + len(adapted) == 2 * (n_projections + 2)
    assert 0 < (outputs(models[0]) - outputs(models[1])).abs().mean() < 0.3


def test_new_weights_must_be_trainable():
    headless = build(ph.ModelConfig(**SIZES, kind="encoder", lm_head=False), seed=1)
    origin = SimpleNamespace(model=headless, config=headless.config)
    classifier, masked = make_model("classifier"), make_model("encoder")
    summary = load_init_weights(classifier, origin, 1, LoraConfig())
    assert summary.endswith("; new: classifier, pooler")
    check_new_weights(masked, LoraConfig(), [])
    detector = build(ph.ModelConfig(**SIZES, kind="encoder", generator_layers=1), seed=1)
    for model, saved_modules, parts in (
        (masked, (), ["transform", "transform_norm"]),
        (masked, ("transform_norm",), ["transform_norm", "transform"]),
        (detector, (), ["detector", "detector_transform", "generator"]),
    ):
        with user_error(r"train.lora: .* is new and would not be trained; add it") as error:
            load_init_weights(model, origin, 1, LoraConfig(modules_to_save=saved_modules))
        assert str(error.value).endswith(f"train.lora.modules_to_save=[{', '.join(parts)}]")
        load_init_weights(model, origin, 1, LoraConfig(modules_to_save=parts))


def test_run_with_adapters_ends_as_a_plain_run(workdir):
    origin = ph.load(workdir / "first")
    lora = {"r": 4, "target_modules": ["attn", "cross", "ffn"]}
    options = {"lr": 3e-2, "ema": None, "average_checkpoints": 0, "schedule": {"name": "constant"}}
    run, lines = tune(workdir, "lora", lora=lora, steps=8, **options)
    assert any("trainable" in line for line in lines)
    initial, final_weights = named_state(origin.model), named_state(run.model)
    assert initial.keys() == final_weights.keys()
    changed_names = {name for name, w in final_weights.items() if not torch.equal(initial[name], w)}
    pattern = re.compile(r"\.(attn|cross|ffn)\..*proj\.weight$")
    assert changed_names == {name for name in initial if pattern.search(name)}
    loaded_run = ph.load(workdir / "lora").model
    assert not any(isinstance(part, LoraLinear) for part in loaded_run.modules())
    assert equal_tensors(named_state(loaded_run), final_weights)
    (workdir / "lora/model.safetensors").unlink()  # as if unfinished: the checkpoint has adapters
    for name, tensor in named_state(ph.load(workdir / "lora").model).items():
        torch.testing.assert_close(tensor, final_weights[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize("ema", [pytest.param(None, marks=pytest.mark.slow), 0.9])
def test_run_with_adapters_resumes_bit_for_bit(ema, workdir):
    options = {"lora": {"r": 2, "dropout": 0.2}, "schedule": {"name": "constant"}, "ema": ema}
    tune(workdir, "cut", **options)
    expected, _ = tune(workdir, "all", steps=2 * STEPS, **options)
    recipe = load_recipe(workdir / "cut/recipe.yaml", [f"train.steps={2 * STEPS}"])
    resumed_run, _ = run_training(recipe, resume=True, report=Notes())
    assert equal_tensors(named_state(resumed_run.model), named_state(expected.model))
    for name in ("cut", "all"):
        shutil.rmtree(workdir / name)


def test_memory_estimate_counts_trainable_parameters():
    config = ph.ModelConfig(**{**SIZES, "kind": "decoder", "d_model": 32, "vocab_size": 500})

    def estimate(lora):
        train, shape = TrainConfig(steps=1, lora=lora), BatchShape(2, 8)
        prepare = partial(prepare_trainable, config=train)
        return estimate_training_memory(config, shape, Choice("adamw"), prepare=prepare)

    full, lora, int4 = estimate(None), estimate(LoraConfig(r=2)), estimate(LoraConfig(r=2, base="int4"))
    n_trainable = 2 * 2 * 2 * (32 + 32)  # 2 layers with 2 adapters of rank 2
    assert lora.gradients == 4 * n_trainable
    assert lora.optimizer == pytest.approx(8 * n_trainable, abs=200)  # and a count of the steps for each
    assert lora.weights == full.weights + 4 * n_trainable
    assert full.loss - lora.loss >= 4 * 500 * 32  # no gradient of the head
    assert lora.activations < full.activations  # nothing is kept that only gradients of weights need
    n_bytes = 4 * 32 * (17 + 4) + 128 * (17 + 4) + 32 * (4 * 17 + 4)  # rows of groups and a scale
    assert lora.weights - int4.weights == 2 * (4 * (4 * 32 * 32 + 2 * 32 * 128) - n_bytes)
    assert (int4.gradients, int4.activations) == (lora.gradients, lora.activations)
