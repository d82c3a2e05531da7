"""AdamW in kernels: the weights of torch's with clipped gradients, in fp64 and fp32."""

import math

import pytest
import torch
from torch import nn

from polyhead.kernels.training.adamw import AdamW

SHAPES = [(1,), (15,), (17,), (4096,), (4097,), (70, 301), (3, 5, 7)]


def make_optimizers(kind, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator) for shape in SHAPES]
    parameters = [nn.Parameter(w.to(dtype)) for w in weights]
    groups = [
        {"params": parameters[::2], "weight_decay": 0.1},
        {"params": parameters[1::2], "weight_decay": 0.0, "betas": (0.8, 0.95), "eps": 1e-3},
    ]
    return parameters, kind(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=dtype == torch.float32)


def set_gradients(parameters, step, size):
    generator = torch.Generator().manual_seed(step)
    for number, p in enumerate(parameters):
        gradient = size * torch.randn(p.shape, generator=generator)
        p.grad = gradient.to(p.dtype) if (number + step) % 4 else None  # frozen in some steps


def test_steps_are_those_of_torch_with_clipped_gradients():
    ours, optimizer = make_optimizers(AdamW)
    theirs, reference = make_optimizers(torch.optim.AdamW, torch.float64)
    for step in range(12):
        size = 0.001 if step % 3 else 1.0  # norms far below and above the maximum
        for parameters in (ours, theirs):
            set_gradients(parameters, step, size)
        before = [None if p.grad is None else p.grad.clone() for p in ours]
        for one in (optimizer, reference):
            for group in one.param_groups:
                group["lr"] = 0.01 / (step + 1)
        expected = nn.utils.clip_grad_norm_(theirs, 5.0)
        norm = optimizer.clip(5.0)
        assert float(norm) == pytest.approx(expected.item(), rel=1e-6)
        if step > 1:  # the first two steps make the state, and are torch's
            assert all(g is None or torch.equal(p.grad, g) for p, g in zip(ours, before, strict=True))
        optimizer.step()
        reference.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=2e-6)
    for a, b in zip(ours, theirs, strict=True):
        state, expected_state = optimizer.state[a], reference.state[b]
        assert state["step"] == expected_state["step"] < 12
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(state[name].double(), expected_state[name], rtol=1e-5, atol=1e-9)


def test_bits_do_not_depend_on_threads():
    def train(n_threads, switch_at=None):
        parameters, optimizer = make_optimizers(AdamW)
        torch.set_num_threads(n_threads)
        for step in range(6):
            if step == switch_at:
                state = optimizer.state_dict()
                _, plain = make_optimizers(torch.optim.AdamW)
                plain.load_state_dict(state)
                optimizer.load_state_dict(plain.state_dict())
            set_gradients(parameters, step, 1.0)
            optimizer.clip(1.0)
            optimizer.step()
        return parameters

    threads = torch.get_num_threads()
    try:
        one, two, switched = train(1), train(2), train(1, switch_at=3)
    finally:
        torch.set_num_threads(threads)
    for a, b, c in zip(one, two, switched, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_torch_clips_transposed_gradients():
    ours, optimizer = make_optimizers(AdamW)
    theirs, reference = make_optimizers(torch.optim.AdamW)
    for step in range(4):
        for parameters in (ours, theirs):
            set_gradients(parameters, step + 4 * (step > 2), 1.0)
            parameters[5].grad = torch.ones(301, 70).T * step
        expected = nn.utils.clip_grad_norm_(theirs, 1.0)
        assert optimizer.clip(1.0) == expected
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_a_norm_that_is_not_finite_is_reported():
    parameters, optimizer = make_optimizers(AdamW)
    for step, value in ((1, 0.0), (2, 0.0), (3, math.inf), (4, math.nan)):
        set_gradients(parameters, step, 1.0)
        for p in parameters[:1]:
            p.grad = torch.full_like(p, value)
        norm = float(optimizer.clip(1.0))
        assert math.isfinite(norm) == (value == 0.0)
        if value == 0.0:
            optimizer.step()
        optimizer.zero_grad()
    before = [p.detach().clone() for p in parameters]
    optimizer.step()  # without gradients, after a step that was left out
    assert all(torch.equal(p, q) for p, q in zip(parameters, before, strict=True))
