"""Averages of weights against sums written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyhead.checkpoint.weight_selection import average
from polyhead.train.ema import Ema, copy_into


def test_the_average_moves_as_computed_by_hand() -> None:
    model = nn.Linear(3, 2, dtype=torch.float64)
    ema = Ema(model, 0.5)
    wanted = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(1, 9):
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn_like(p)
        ema.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        wanted = {
            name: decay * wanted[name] + (1 - decay) * p.detach() for name, p in model.named_parameters()
        }
    for name, weights in ema.weights.items():
        assert torch.allclose(weights, wanted[name], rtol=1e-14)


def test_an_average_that_was_saved_in_another_order_goes_on_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    one, other = Ema(model, 0.9), Ema(model, 0.9)
    other.load(dict(sorted(one.weights.items(), reverse=True)))
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p)
    one.update(model, 5)
    other.update(model, 5)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_applied_weights_are_taken_back_also_after_an_error() -> None:
    model = nn.Linear(2, 2)
    ema = Ema(model, 0.9)
    own = model.weight.detach().clone()
    ema.weights["weight"].fill_(3)

    def evaluate() -> None:
        with ema.apply_to(model):
            assert torch.equal(model.weight, torch.full((2, 2), 3.0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        evaluate()
    assert torch.equal(model.weight, own)


def test_the_mean_of_checkpoints_is_summed_in_double_precision() -> None:
    several = [
        {"w": torch.tensor([1e8, 1.0])},
        {"w": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([-1e8, 6.0])},
    ]
    assert torch.equal(average(several)["w"], torch.tensor([1 / 3, 3.0]))
    assert average([{"w": torch.ones(1, dtype=torch.bfloat16)}])["w"].dtype is torch.bfloat16


def test_put_copies_and_does_not_share() -> None:
    model, weights = nn.Linear(1, 1), {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}
    copy_into(model, weights)
    weights["weight"].zero_()
    assert model.weight.item() == 1
