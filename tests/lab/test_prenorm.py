import pytest
import torch

from polyhead.models.build import build
from polyhead_lab import linear, prenorm
from polyhead_lab.short_training import make_small_config


def test_gradient_norm_of_layer_matches_autograd():
    norms = prenorm.measure_gradients(2, 1, {"norm_first": True})
    model = build(make_small_config(prenorm.COPY_TASK, n_layers=2, norm_first=True), 1)
    batch = prenorm.COPY_TASK.batch(1, 0)
    parameters = [p for name, p in model.named_parameters() if name.startswith("decoder.layers.1.")]
    logits = model(batch.source, batch.target)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
    grads = torch.autograd.grad(loss, parameters)
    assert norms[1] == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-4)
    assert len(norms) == 2


def test_exponents_of_power_laws_and_verdict():
    by_depth = {d: [[1.0, 3.0 * d**-0.5], [1.0, 2.0 * d**0.25]] for d in (2, 4, 12)}
    assert prenorm.fit_depth_exponents(by_depth) == pytest.approx([-0.5, 0.25])
    assert linear.fit_exponents(
        [(8.0, [3.0, 1.0]), (16.0, [1.0, 1.0]), (32.0, [48.0, 4.0])]
    ) == pytest.approx([2, 1])
    # the verdict compares in both directions
    a, b = [1.0, 1.01, 1.02], [1.5, 1.51, 1.52]
    assert prenorm.verdict_same(a, [1.0, 1.02, 1.01], 0.1) is True
    assert prenorm.verdict_same(a, b, 0.1) is prenorm.verdict_same(b, a, 0.1) is False
    assert prenorm.verdict_same([1.0, 1.5, 0.5], a, 0.1) is None
