import pytest
import torch

from polyhead.models.build import build
from polyhead_lab import linear, norms
from polyhead_lab.registry import LabContext
from polyhead_lab.short_training import make_small_config


def test_padding_affects_batchnorm_only_without_positions():
    context = LabContext(1, True)
    assert norms.measure_padding_effect(context, with_positions=True) < 1e-5
    assert norms.measure_padding_effect(context, with_positions=False) > 0.1


def test_gradient_norm_of_layer_matches_autograd():
    gradients = norms.measure_gradients(2, 1, {"norm_first": True})
    model = build(make_small_config(norms.COPY_TASK, n_layers=2, norm_first=True), 1)
    batch = norms.COPY_TASK.batch(1, 0)
    parameters = [p for name, p in model.named_parameters() if name.startswith("decoder.layers.1.")]
    logits = model(batch.source, batch.target)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
    grads = torch.autograd.grad(loss, parameters)
    assert gradients[1] == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-4)
    assert len(gradients) == 2


def test_exponents_of_power_laws_and_verdict():
    by_depth = {d: [[1.0, 3.0 * d**-0.5], [1.0, 2.0 * d**0.25]] for d in (2, 4, 12)}
    assert norms.fit_depth_exponents(by_depth) == pytest.approx([-0.5, 0.25])
    assert linear.fit_exponents(
        [(8.0, [3.0, 1.0]), (16.0, [1.0, 1.0]), (32.0, [48.0, 4.0])]
    ) == pytest.approx([2, 1])
    # the verdict compares in both directions
    a, b = [1.0, 1.01, 1.02], [1.5, 1.51, 1.52]
    assert norms.verdict_same(a, [1.0, 1.02, 1.01], 0.1) is True
    assert norms.verdict_same(a, b, 0.1) is norms.verdict_same(b, a, 0.1) is False
    assert norms.verdict_same([1.0, 1.5, 0.5], a, 0.1) is None
