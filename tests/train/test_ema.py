import pytest
import torch
from torch import nn

from polyhead.checkpoint.weight_selection import average
from polyhead.train.ema import Ema, copy_into


@torch.no_grad()
def move_weights(model):
    for p in model.parameters():
        p += torch.randn_like(p)


def test_average_follows_its_formula():
    model = nn.Linear(3, 2, dtype=torch.float64)
    ema = Ema(model, 0.5)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(1, 9):
        move_weights(model)
        ema.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, p in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach()
    for name, weights in ema.weights.items():
        assert torch.allclose(weights, expected[name], rtol=1e-14)


def test_average_is_loaded_by_name_in_any_order():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ema, loaded_ema = Ema(model, 0.9), Ema(model, 0.9)
    loaded_ema.load(dict(sorted(ema.weights.items(), reverse=True)))
    move_weights(model)
    ema.update(model, 5)
    loaded_ema.update(model, 5)
    assert all(torch.equal(ema.weights[name], loaded_ema.weights[name]) for name in ema.weights)


def test_apply_to_restores_weights_after_an_error():
    model = nn.Linear(2, 2)
    ema, initial_weight = Ema(model, 0.9), model.weight.detach().clone()
    ema.weights["weight"].fill_(3)

    def evaluate():
        with ema.apply_to(model):
            assert torch.equal(model.weight, torch.full((2, 2), 3.0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        evaluate()
    assert torch.equal(model.weight, initial_weight)


def test_mean_of_checkpoints_is_summed_in_double_precision():
    checkpoints = [{"w": torch.tensor(values)} for values in ([1e8, 1.0], [1.0, 2.0], [-1e8, 6.0])]
    assert torch.equal(average(checkpoints)["w"], torch.tensor([1 / 3, 3.0]))
    assert average([{"w": torch.ones(1, dtype=torch.bfloat16)}])["w"].dtype is torch.bfloat16


def test_copy_into_does_not_share_memory():
    model, weights = nn.Linear(1, 1), {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}
    copy_into(model, weights)
    weights["weight"].zero_()
    assert model.weight.item() == 1
