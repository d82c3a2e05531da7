"""Optimisers against their formulas, and what each of them touches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.registry import OPTIMIZER
from polyhead.train.optim import set_rates


def tiny() -> nn.Module:
    return build(ModelConfig(vocab_size=11, d_model=8, n_heads=2, n_layers=1, d_ff=16, max_len=8), seed=1)


def fill(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def test_adamw_is_the_published_update() -> None:
    model = tiny()
    (optimizer,) = OPTIMIZER.build(
        Choice("adamw", beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1), model, 0.01
    )
    assert optimizer.defaults["fused"]
    state = {n: (p.detach().double(), 0.0, 0.0) for n, p in model.named_parameters()}
    for step in range(1, 5):
        fill(model, step)
        set_rates([optimizer], 0.5)
        for name, p in model.named_parameters():
            w, m, v = state[name]
            g, lr = p.grad.double(), 0.01 * 0.5
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
            w = w * (1 - lr * (0.1 if p.ndim >= 2 else 0.0))
            w = w - lr * (m / (1 - 0.8**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-6)
            state[name] = (w, m, v)
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.allclose(p.detach().double(), state[name][0], rtol=1e-5, atol=1e-7), name


def test_decay_pulls_on_matrices_alone() -> None:
    model = tiny()
    (optimizer,) = OPTIMIZER.build(Choice("adamw", weight_decay=0.1), model, 0.01)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(p) for p in model.parameters() if p.ndim >= 2}


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_each_parameter_has_one_optimizer_and_one_peak(name: str) -> None:
    model = tiny()
    optimizers = OPTIMIZER.build(Choice(name), model, 0.02)
    owned = [id(p) for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    set_rates(optimizers, 1.0)
    set_rates(optimizers, 0.25)
    set_rates(optimizers, 0.5)  # of the peak, not of what was set last
    assert all(group["lr"] == pytest.approx(0.01) for o in optimizers for group in o.param_groups)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_each_optimizer_makes_the_loss_smaller(name: str) -> None:
    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6)),
        torch.randn(32, 6),
        torch.randn(32, 6),
    )
    optimizers = OPTIMIZER.build(Choice(name), model, 0.02)
    losses = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_muon_takes_the_matrices_of_the_blocks_and_leaves_embeddings_to_adam() -> None:
    model = tiny()
    muon, adam = OPTIMIZER.build(Choice("muon", adam_lr=0.5), model, 0.02)
    inside = {id(p) for group in muon.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in inside}
    assert names
    assert not any("embedding" in name or name.startswith("head.") for name in names)
    assert {group["lr"] for group in muon.param_groups} == {0.02}
    assert {group["lr"] for group in adam.param_groups} == {0.5}
