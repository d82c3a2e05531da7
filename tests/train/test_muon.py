import pytest
import torch
from torch import nn

from polyhead.train import optim as muon


def apply_formula(p, grads, lr, decay, dtype):
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
def test_muon_is_the_published_update(shape, monkeypatch):
    """In the precision in which the processor is fast."""
    generator = torch.Generator().manual_seed(1)
    start, *grads = (torch.randn(shape, generator=generator) for _ in range(5))
    results = {}
    for precision in ("fp32", "bf16"):
        monkeypatch.setattr(muon, "resolve_precision", lambda *_, precision=precision: precision)
        p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
        optimizer = muon.Muon([p], **options)
        reference = torch.optim.Muon([q], adjust_lr_fn="match_rms_adamw", **options)
        for g in grads:
            p.grad, q.grad = g.clone(), g.clone()
            optimizer.step()
            reference.step()
        results[precision] = p.detach()
        assert torch.equal(p, q) == (precision == "bf16")
        assert optimizer.state_dict()["state"].keys() == reference.state_dict()["state"].keys()
    expected = apply_formula(start, grads, 0.02, 0.1, torch.float64)
    assert torch.allclose(results["fp32"].double(), expected, atol=1e-6)
    assert 1e-5 < (results["bf16"] - expected).abs().max() < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_orthogonalize_is_nearly_orthogonal(dtype):
    matrix = torch.randn(24, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float32).to(dtype)
    u, _, v = torch.linalg.svd(matrix.float(), full_matrices=False)
    product = u.T @ muon.orthogonalize(matrix).float() @ v.T  # diagonal in its own singular vectors
    assert torch.allclose(product, torch.diag(product.diag()), atol=0.02)
    assert product.diag().min() > 0.65 and product.diag().max() < 1.25
    assert not muon.orthogonalize(torch.zeros(3, 4)).any()
