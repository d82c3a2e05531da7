import pytest
import torch
from torch import nn

from polyhead.checkpoint.weight_selection import average
from polyhead.train.ema import Ema


@torch.no_grad()
def move_weights(model):
    for p in model.parameters():
        p += torch.randn_like(p)


def test_average_follows_its_formula():
    model = nn.Linear(3, 2, dtype=torch.float64)
    ema, loaded_ema = Ema(model, 0.5), Ema(model, 0.5)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(1, 9):
        move_weights(model)
        ema.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, p in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach()
    loaded_ema.load(dict(sorted(ema.weights.items(), reverse=True)))  # by name, in any order
    for name, weights in ema.weights.items():
        assert torch.allclose(weights, expected[name], rtol=1e-14)
        assert torch.equal(weights, loaded_ema.weights[name])


def test_apply_to_restores_weights_after_an_error():
    model = nn.Linear(2, 2)
    ema, initial_weight = Ema(model, 0.9), model.weight.detach().clone()
    ema.weights["weight"].fill_(3)

    def evaluate():
        with ema.apply_to(model):
            assert torch.equal(model.weight, torch.full((2, 2), 3.0))
            model.weight.data.zero_()  # which the average does not share
            raise RuntimeError

    with pytest.raises(RuntimeError):
        evaluate()
    assert torch.equal(model.weight, initial_weight) and ema.weights["weight"].unique().tolist() == [3]


def test_mean_of_checkpoints_is_summed_in_double_precision():
    checkpoints = [{"w": torch.tensor(values)} for values in ([1e8, 1.0], [1.0, 2.0], [-1e8, 6.0])]
    assert torch.equal(average(checkpoints)["w"], torch.tensor([1 / 3, 3.0]))
    assert average([{"w": torch.ones(1, dtype=torch.bfloat16)}])["w"].dtype is torch.bfloat16
