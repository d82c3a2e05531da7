import pytest
import torch

from polyhead.lab import linear, prenorm
from polyhead.lab.short_training import make_small_config
from polyhead.models.build import build


def test_the_gradient_of_a_layer_is_that_of_its_weights():
    found = prenorm.measure_gradients(2, 1, {"norm_first": True})
    model = build(make_small_config(prenorm.COPY_TASK, n_layers=2, norm_first=True), 1)
    batch = prenorm.COPY_TASK.batch(1, 0)
    names = [n for n, _ in model.named_parameters() if n.startswith("decoder.layers.1.")]
    logits = model(batch.source, batch.target)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
    grads = torch.autograd.grad(loss, [model.get_parameter(n) for n in names])
    assert found[1] == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-4)
    assert len(found) == 2


def test_the_exponent_of_a_power_law_is_found():
    by_depth = {d: [[1.0, 3.0 * d**-0.5], [1.0, 2.0 * d**0.25]] for d in (2, 4, 12)}
    assert prenorm.fit_depth_exponents(by_depth) == pytest.approx([-0.5, 0.25])
    assert linear.fit_exponent([(8.0, 3.0), (16.0, 1.0), (32.0, 48.0)]) == pytest.approx(2.0)
