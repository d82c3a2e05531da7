"""Optimisers against their formulas, and what each of them touches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.core.registry import OPTIMIZER, POSITION
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
    config = ModelConfig(kind="decoder", vocab_size=11, d_model=16, n_heads=2, n_layers=1, dropout=0.0)
    model, tokens = (
        build(config, seed=1),
        torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(2)),
    )
    optimizers = OPTIMIZER.build(Choice(name), model, 0.02)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
FEED_FORWARD = {"ffn.up_proj", "ffn.down_proj"}
BLOCK = {f"attn.{name}" for name in ATTENTION} | FEED_FORWARD
DECODER = BLOCK | {f"cross.{name}" for name in ATTENTION}
KINDS: list[tuple[dict[str, Any], dict[str, set[str]]]] = [
    ({"kind": "decoder"}, {"stack": BLOCK}),
    ({"kind": "decoder", "tie_embeddings": "none"}, {"stack": BLOCK}),
    ({"kind": "decoder", "block": {"name": "parallel"}, "norm_first": True}, {"stack": BLOCK}),
    ({"kind": "encoder", "n_segments": 2}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder", "labels": ["a", "b"]}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder", "lm_head": False, "pooling": "first"}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder-decoder"}, {"encoder": BLOCK, "decoder": DECODER}),
    ({"kind": "encoder-decoder", "tie_embeddings": "none"}, {"encoder": BLOCK, "decoder": DECODER}),
]


@pytest.mark.parametrize("position", [*POSITION.names(), "pattern"])
@pytest.mark.parametrize(("kind", "wanted"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_muon_takes_the_matrices_inside_the_blocks_alone(
    kind: dict[str, Any], wanted: dict[str, set[str]], position: str
) -> None:
    """Whatever is looked up, and whatever is above the blocks, is left to AdamW."""
    where: dict[str, Any] = {"position": position}
    if position == "pattern":
        where = {
            "position": "rope",
            "layer_pattern": [{"position": {"name": name}} for name in ("t5", "shaw")],
        }
    model = build(ModelConfig(vocab_size=11, d_model=8, n_heads=2, n_layers=2, max_len=8, **kind, **where), 1)
    muon, adam = OPTIMIZER.build(Choice("muon"), model, 0.02)
    inside = {id(p) for group in muon.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in inside}
    assert names == {
        f"{stack}.layers.{i}.{part}.weight"
        for stack, parts in wanted.items()
        for part in parts
        for i in (0, 1)
    }
    others = {id(p) for group in adam.param_groups for p in group["params"]}
    assert others == {id(p) for p in model.parameters()} - inside


def test_without_a_matrix_in_a_block_there_is_adamw_alone() -> None:
    (only,) = OPTIMIZER.build(Choice("muon"), nn.Linear(3, 2), 0.02)
    assert isinstance(only, torch.optim.AdamW)
