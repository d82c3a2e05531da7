import pytest
import torch

from polyhead.models.build import build
from polyhead_lab import activations


def test_dead_units_are_counted():
    model = build(activations.make_activation_config("relu"), 1)
    assert activations.dead_unit_share(model) < 0.05
    for side, fraction in (("encoder", 0.5), ("decoder", 0.25)):
        bias = model.get_submodule(f"{side}.layers.0.ffn").up_proj.bias
        with torch.no_grad():
            bias[: int(fraction * activations.D_FF)] = -1e3
    assert activations.dead_unit_share(model) == pytest.approx(0.375, abs=0.02)
    # a constant unit is dead
    hidden = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    assert activations.compute_dead_share(hidden) == 0
    hidden[:, 1], hidden[:, 2] = 5.0, 0.0
    assert activations.compute_dead_share(hidden) == 0.5
