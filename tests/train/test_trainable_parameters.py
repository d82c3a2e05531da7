"""Fine-tuning with adapters: what learns and what stays, that a run goes on bit for bit and ends as a plain
one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes, toy_model
from tests.train.test_init_from import first as first  # the run that training begins with
from tests.train.test_init_from import tuned
from torch import Tensor

import polyhead as ph
from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.models import build
from polyhead.nn.lora import LoraLinear, merge_lora
from polyhead.nn.loss import cross_entropy
from polyhead.nn.state import named_state
from polyhead.run.recipe import load_recipe
from polyhead.train.init_from import load_init_weights
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import (
    add_lora,
    check_new_weights,
    parameter_summary,
    prepare_trainable,
    scale_rates,
)

pytestmark = pytest.mark.usefixtures("unsynced")

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "vocab_size": 11,
    "max_len": 12,
    "dropout": 0.0,
}
KINDS: dict[str, dict[str, Any]] = {
    "encoder-decoder": {}, "decoder": {"kind": "decoder"}, "encoder": {"kind": "encoder"},
    "classifier": {"kind": "encoder", "labels": ["a", "b"]},
    "tied": {"kind": "decoder", "attention": {"name": "softmax", "tie": "kv"}},
}  # fmt: skip


def model_of(kind: str) -> Any:
    return build(ph.ModelConfig(**SMALL, **KINDS[kind]), seed=1).eval()


def outputs(model: Any) -> Tensor:
    tokens = torch.arange(10).view(2, 5)
    with torch.no_grad():
        out: Tensor = model(tokens, tokens) if model.config.kind == "encoder-decoder" else model(tokens)
    return out


def teach(model: Any) -> None:
    """Something that an adapter might have learned."""
    for name, p in model.named_parameters():
        if name.endswith("lora_b"):
            torch.nn.init.normal_(p, std=0.3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [("q_proj", "v_proj"), ("attn", "ffn")])
def test_it_gives_the_same_at_the_start_and_the_same_when_merged(kind: str, parts: tuple[str, ...]) -> None:
    model = model_of(kind)
    names, before = list(named_state(model)), outputs(model)
    add_lora(model, LoraConfig(r=2, target_modules=parts), seed=3)
    assert torch.equal(outputs(model), before)
    assert any(isinstance(part, LoraLinear) for part in model.modules())
    teach(model)
    learned = outputs(model)
    assert not torch.allclose(learned, before, atol=1e-3)
    merge_lora(model)
    torch.testing.assert_close(outputs(model), learned, rtol=0, atol=1e-5)
    assert list(named_state(model)) == names


def test_adapters_learn_and_what_a_classifier_has_above_its_encoder() -> None:
    model = model_of("classifier")
    add_lora(model, LoraConfig(r=2), seed=3)
    learn = {name for name, p in model.named_parameters() if p.requires_grad}
    above = {name for name in named_state(model) if name.startswith(("pooler.", "classifier."))}
    maps = [f"encoder.stack.layers.{i}.attn.{p}_proj" for i in (0, 1) for p in "qv"]
    assert learn == above | {f"{name}.lora_{x}" for name in maps for x in "ab"}
    # 4 maps of rank 2 between 16 and 16; a pooler of 16 x 16 + 16; classes of 2 x 16 + 2
    assert parameter_summary(model).endswith(f" parameters, {4 * 2 * 32 + 272 + 34:,} trainable")
    assert parameter_summary(model_of("decoder")).endswith("parameters")
    model = model_of("classifier")
    add_lora(model, LoraConfig(r=2, target_modules=["layers.1.ffn"], modules_to_save=["classifier"]), seed=3)
    learn = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[0] for name in learn} == {
        "classifier",
        "encoder.stack.layers.1.ffn.up_proj",
        "encoder.stack.layers.1.ffn.down_proj",
    }


def test_the_same_seed_draws_the_same_adapters_and_leaves_other_draws_alone() -> None:
    def drawn(seed: int) -> Tensor:
        model = model_of("decoder")
        add_lora(model, LoraConfig(), seed)
        return torch.cat([p.detach().flatten() for n, p in model.named_parameters() if n.endswith("lora_a")])

    torch.manual_seed(9)
    wanted = torch.rand(3)
    torch.manual_seed(9)
    one = drawn(3)
    torch.manual_seed(9)
    model = model_of("decoder")
    torch.manual_seed(9)
    add_lora(model, LoraConfig(), 3)
    assert torch.equal(torch.rand(3), wanted)
    assert torch.equal(one, drawn(3)) and not torch.equal(one, drawn(4))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"target_modules": ["q_prj"]}, r"train.lora.target_modules: no linear layer .* is named 'q_prj'; "
                                        r"did you mean 'q_proj'\?"),
        ({"target_modules": ["embedding"]}, "no linear layer of the model is named 'embedding'"),
        # it learns whole
        ({"target_modules": ["classifier"]}, "no linear layer of the model is named 'classifier'"),
        ({"r": 17}, r"train.lora.r: 17 is more than encoder.*q_proj has, a matrix of 16 x 16; at most 16"),
        ({"modules_to_save": ["poler"]}, r"train.lora.modules_to_save: no part of the model is named "
                                         r"'poler'; did you mean 'pooler'"),
    ],
)  # fmt: skip
def test_names_and_numbers_that_are_none_are_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        add_lora(model_of("classifier"), LoraConfig(**section), seed=3)


def test_adapters_are_for_weights_that_were_trained(first: Path) -> None:
    def made(adapted: dict[str, Any], **more: Any) -> None:
        given = tuned(first, "x").model_dump()
        Recipe(**given | {"train": given["train"] | {"lora": adapted}} | more)

    made({"r": 2})
    with pytest.raises(UserError, match=r"train\.lora requires trained weights: set init_from\.run"):
        made({"r": 2}, init_from=None)
    with pytest.raises(UserError, match=r"train\.lora\.alfa: unknown key; did you mean 'alpha'"):
        made({"alfa": 2})


def test_new_weights_must_learn() -> None:
    sizes = {**SMALL, "kind": "encoder"}

    class Origin:
        model = build(ph.ModelConfig(**sizes, lm_head=False), seed=1)
        config = model.config

    classifier, masked = model_of("classifier"), model_of("encoder")
    said = load_init_weights(classifier, Origin, 1, LoraConfig())  # type: ignore[arg-type]
    assert said.endswith("; new: classifier, pooler")
    check_new_weights(masked, LoraConfig(), [])
    detector = build(ph.ModelConfig(**sizes, generator_layers=1), seed=1)
    for model, named, parts in (
        (masked, (), ["transform", "transform_norm"]),
        (masked, ("transform_norm",), ["transform_norm", "transform"]),
        (detector, (), ["detector", "detector_transform", "generator"]),
    ):
        with pytest.raises(
            UserError, match=r"train.lora: .* is new and would not be trained; add it"
        ) as told:
            load_init_weights(model, Origin, 1, LoraConfig(modules_to_save=named))  # type: ignore[arg-type]
        assert str(told.value).endswith(f"train.lora.modules_to_save=[{', '.join(parts)}]")
        load_init_weights(model, Origin, 1, LoraConfig(modules_to_save=parts))  # type: ignore[arg-type]


def test_the_loss_falls_as_if_all_had_learned() -> None:
    """Other texts than those of the weights: adapters alone learn them, and nothing else moves by a bit."""
    model, config = (
        model_of("decoder"),
        TrainConfig(steps=150, lr=1e-2, lora=LoraConfig(r=4, target_modules=["attn", "ffn"])),
    )
    tokens = torch.randint(11, (6, 9), generator=torch.Generator().manual_seed(4))
    before = {name: tensor.clone() for name, tensor in named_state(model).items()}
    training = TrainState(model, config, 16, 150)

    def loss() -> Tensor:
        return cross_entropy(model.features(tokens[:, :-1]), model.head, tokens[:, 1:]).total / 48

    losses = []
    for _ in range(150):
        model.zero_grad()
        value = loss()
        value.backward()
        for optimizer in training.optimizers:
            optimizer.step()
        losses.append(float(value.detach()))
    assert losses[-1] < 0.5 * losses[0]
    for name, tensor in before.items():
        assert torch.equal(tensor, named_state(model)[name]), name


def test_a_run_learns_with_adapters_and_ends_as_a_plain_one(first: Path) -> None:
    origin, notes = ph.load(first / "first"), Notes()
    more = {
        "lora": {"r": 4, "target_modules": ["attn", "cross", "ffn"]},
        "steps": 60,
        "lr": 3e-2,
        "ema": None,
        "average_checkpoints": 0,
    }
    more |= {"schedule": {"name": "constant"}, "log_every": 5, "eval_every": 60, "save_every": 60}
    run, _ = run_training(tuned(first, "adapted", **more), report=notes)
    losses = notes.series("loss")
    assert losses[-1] < losses[0]
    assert any("trainable" in line for line in notes.said)
    before, after = named_state(origin.model), named_state(run.model)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        name for name in before
        if any(part in name for part in (".attn.", ".cross.", ".ffn.")) and name.endswith("proj.weight")
    }  # fmt: skip
    again = ph.load(first / "adapted")
    assert not any(isinstance(part, LoraLinear) for part in again.model.modules())
    for name, tensor in named_state(again.model).items():
        assert torch.equal(tensor, after[name])
    (
        first / "adapted/model.safetensors"
    ).unlink()  # as if it had not come to its end: the checkpoint has adapters
    for name, tensor in named_state(ph.load(first / "adapted").model).items():
        torch.testing.assert_close(tensor, after[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_it_goes_on_bit_for_bit(first: Path, ema: float | None) -> None:
    more: dict[str, Any] = {
        "lora": {"r": 2, "dropout": 0.2},
        "schedule": {"name": "constant"},
        "ema": ema,
    }
    run_training(tuned(first, "cut", steps=7, **more), report=Notes())
    run_training(tuned(first, "all", steps=14, **more), report=Notes())
    on, _ = run_training(
        load_recipe(first / "cut/recipe.yaml", ["train.steps=14"]), resume=True, report=Notes()
    )
    straight = ph.load(first / "all")
    for name, tensor in named_state(straight.model).items():
        assert torch.equal(named_state(on.model)[name], tensor), name
    for name in ("cut", "all"):
        shutil.rmtree(first / name)


def test_a_plan_counts_what_learns() -> None:
    config = ph.ModelConfig(**{**SMALL, "kind": "decoder", "d_model": 32, "vocab_size": 500})
    train = TrainConfig(steps=1, lora=LoraConfig(r=2))
    whole, part = (
        estimate_training_memory(
            config, BatchShape(2, 8), Choice("adamw"), prepare=lambda model, t=t: prepare_trainable(model, t)
        )
        for t in (TrainConfig(steps=1), train)
    )
    learn = 2 * 2 * 2 * (32 + 32)  # 2 layers of 2 maps of rank 2
    assert part.gradients == 4 * learn
    assert part.optimizer == pytest.approx(8 * learn, abs=200)  # and a count of the steps for each
    assert part.weights == whole.weights + 4 * learn
    assert whole.loss - part.loss == 4 * 500 * 32  # no gradient of the head
    assert part.activations is not None and whole.activations is not None
    assert part.activations < whole.activations  # what only gradients of weights need is not kept


def test_rates_of_nothing_are_left_alone() -> None:
    training = TrainState(toy_model(), TrainConfig(steps=1), 8, 1)
    groups = [len(group["params"]) for group in training.optimizers[0].param_groups]
    scale_rates(training.model, training.optimizers, {})
    assert [len(group["params"]) for group in training.optimizers[0].param_groups] == groups
