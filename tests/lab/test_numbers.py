"""The numbers of the experiments against closed forms and against what is written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from polyhead.lab import activations, heads, linear, norms, prenorm, recurrence, scaling
from polyhead.lab.interleaved_timing import median_times, time_interleaved, time_ratios
from polyhead.lab.registry import LabContext
from polyhead.lab.short_training import make_small_config
from polyhead.lab.statistics import mean_interval, verdict_within
from polyhead.models.build import build

QUICK = LabContext(1, True)


def test_the_variance_of_a_dot_product_is_d_k():
    torch.manual_seed(0)
    for d_k in (4, 64):
        assert verdict_within([v / d_k for v in scaling.measure_variance(d_k, 5_000)], 1.0, 0.05) is True


def test_the_norm_of_the_jacobian_is_that_of_autograd():
    torch.manual_seed(0)
    for sharp in (0.1, 1.0, 30.0):
        scores = torch.randn(5, 7, dtype=torch.double) * sharp
        wanted = [
            float(torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row).square().sum().sqrt())
            for row in scores
        ]
        assert scaling.jacobian_norm(scores.softmax(-1)).tolist() == pytest.approx(wanted, rel=1e-6)


def test_softmax_of_equal_scores_mixes_and_of_huge_ones_chooses():
    torch.manual_seed(0)
    even, sharp = scaling.measure_saturation(8, 0.0, 40), scaling.measure_saturation(8, 1e6, 40)
    n = scaling.N_KEYS
    assert even.entropy == pytest.approx(1.0)
    assert even.peak == pytest.approx(1 / n)
    assert even.slope == pytest.approx(math.sqrt(n - 1) / n)  # diag(1/n) - 1/n^2
    assert (sharp.entropy, sharp.peak, sharp.slope) == pytest.approx((0.0, 1.0, 0.0), abs=1e-9)


def test_a_projected_query_times_key_has_about_the_assumed_variance():
    assert 0.6 < mean_interval(scaling.measure_model_variance(QUICK)).mean < 1.5


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


def test_alike_asks_both_ways():
    assert prenorm.verdict_same([1.0, 1.01, 1.02], [1.0, 1.02, 1.01], 0.1) is True
    assert prenorm.verdict_same([1.0, 1.01, 1.02], [1.5, 1.51, 1.52], 0.1) is False
    assert prenorm.verdict_same([1.5, 1.51, 1.52], [1.0, 1.01, 1.02], 0.1) is False
    assert prenorm.verdict_same([1.0, 1.5, 0.5], [1.0, 1.01, 1.02], 0.1) is None


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


def test_the_closed_form_of_the_cache():
    assert [heads.kv_bytes(*heads.HEAD_DESIGNS[name]) for name in heads.HEAD_DESIGNS] == [
        1024,
        1024,
        512,
        256,
    ]


def test_padding_changes_batchnorm_only_if_it_is_counted():
    assert norms.measure_padding_effect(QUICK, with_positions=True) < 1e-5
    assert norms.measure_padding_effect(QUICK, with_positions=False) > 0.1


def test_the_place_of_an_asked_item_is_where_its_key_stands():
    batch = recurrence.RECALL_TASK.batch(1, 0, 5)
    for source, target, places in zip(
        batch.source.tolist(),
        batch.target.tolist(),
        recurrence.find_item_positions(batch).tolist(),
        strict=True,
    ):
        assert [(source[at] - 2) // 4 for at in places] == [key - 2 - 8 * 4 for key in target]


def test_the_crossover_is_where_the_curves_meet():
    points = [2.0**i for i in range(4, 10)]
    times = {"softmax": [(n, n * n) for n in points], "linear": [(n, 100 * n) for n in points]}
    assert linear.find_crossover(times) == pytest.approx(100.0)
    assert (
        linear.find_crossover({"softmax": times["linear"], "linear": times["softmax"]}) is None
    )  # it was faster, and ends slower
    assert (
        linear.find_crossover({"softmax": times["softmax"], "linear": [(n, n / 2) for n in points]}) == 16.0
    )
    assert "about 100 tokens" in linear.describe_crossover(times)


def test_runners_take_turns_and_ratios_are_taken_round_by_round():
    order: list[str] = []
    taken = time_interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == [*"ab", *"aaaabbbb", *"bbbbaaaa"]
    assert {name: len(times) for name, times in taken.items()} == {"a": 2, "b": 2}
    assert time_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert median_times({"a": [5.0, 1.0, 2.0]}) == {"a": 2.0}
