"""Tests of train/muon.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.core.registry import OPTIMIZER
from polyhead.train import muon


def tiny() -> nn.Module:
    return build(ModelConfig(vocab_size=11, d_model=8, n_heads=2, n_layers=1, d_ff=16, max_len=8), seed=1)


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
