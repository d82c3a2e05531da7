"""Optimisers against their formulas, and what each of them touches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.core.registry import OPTIMIZER, POSITION
from polyhead.train import muon
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
    ({"kind": "encoder", "segments": 2}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder", "labels": ["a", "b"]}, {"encoder.stack": BLOCK}),
    ({"kind": "encoder", "head": False, "pooling": "first"}, {"encoder.stack": BLOCK}),
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
        where = {"position": "rope", "pattern": [{"position": {"name": name}} for name in ("t5", "shaw")]}
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


def test_muon_takes_the_matrices_of_the_blocks_and_leaves_embeddings_to_adam() -> None:
    model = tiny()
    muon, adam = OPTIMIZER.build(Choice("muon", adam_lr=0.5), model, 0.02)
    inside = {id(p) for group in muon.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in inside}
    assert names
    assert not any("embedding" in name or name.startswith("head.") for name in names)
    assert {group["lr"] for group in muon.param_groups} == {0.02}
    assert {group["lr"] for group in adam.param_groups} == {0.5}


def written_out(
    p: torch.Tensor, grads: list[torch.Tensor], lr: float, decay: float, dtype: torch.dtype
) -> torch.Tensor:
    """A matrix after updates of Muon, by its formulas."""
    a, b, c = 3.4445, -4.7750, 2.0315
    p, mean = p.double(), torch.zeros_like(p).double()
    for g in grads:
        mean = 0.9 * mean + 0.1 * g.double()
        x = (0.1 * g.double() + 0.9 * mean).to(dtype)
        x = x / x.norm()
        for _ in range(5):
            x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
        p = p * (1 - lr * decay) - lr * 0.2 * max(p.shape) ** 0.5 * x.double()
    return p


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_muon_is_the_published_update_in_the_format_the_processor_is_fast_in(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    start, *grads = (torch.randn(shape, generator=generator) for _ in range(5))
    found = {}
    for format in ("fp32", "bf16"):
        monkeypatch.setattr(muon, "resolve_precision", lambda wanted, device, format=format: format)
        p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        ours = muon.Muon([p], lr=0.02, momentum=0.9, weight_decay=0.1)
        theirs = torch.optim.Muon(
            [q], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        )
        for g in grads:
            p.grad, q.grad = g.clone(), g.clone()
            ours.step()
            theirs.step()
        found[format] = p.detach()
        assert torch.equal(p, q) == (format == "bf16")
        assert ours.state_dict()["state"].keys() == theirs.state_dict()["state"].keys()
    wanted = written_out(start, grads, 0.02, 0.1, torch.float64)
    assert torch.allclose(found["fp32"].double(), wanted, atol=1e-6)
    assert 1e-5 < (found["bf16"] - wanted).abs().max() < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_muon_goes_by_is_nearly_orthogonal(dtype: torch.dtype) -> None:
    matrix = torch.randn(24, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float32).to(dtype)
    u, _, v = torch.linalg.svd(matrix.float(), full_matrices=False)
    found = muon.orthogonalize(matrix).float()
    inside = u.T @ found @ v.T  # its own singular vectors, so a diagonal matrix
    assert torch.allclose(inside, torch.diag(inside.diag()), atol=0.02)
    assert inside.diag().min() > 0.65 and inside.diag().max() < 1.25
    assert not muon.orthogonalize(torch.zeros(3, 4)).any()
