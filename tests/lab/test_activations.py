import pytest
import torch

from polyhead.lab import activations
from polyhead.models.build import build


def test_units_that_never_move_are_counted():
    model = build(activations.make_activation_config("relu"), 1)
    assert activations.dead_unit_share(model) < 0.05
    ffn = [model.get_submodule(f"{side}.layers.0.ffn") for side in ("encoder", "decoder")]
    for layer, share in zip(ffn, (0.5, 0.25), strict=True):
        with torch.no_grad():
            layer.up_proj.bias[: int(share * activations.D_FF)] = -1e3
    assert activations.dead_unit_share(model) == pytest.approx(0.375, abs=0.02)


def test_a_unit_that_always_says_the_same_is_dead_too():
    hidden = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    assert activations.compute_dead_share(hidden) == 0
    hidden[:, 1], hidden[:, 2] = 5.0, 0.0
    assert activations.compute_dead_share(hidden) == 0.5
