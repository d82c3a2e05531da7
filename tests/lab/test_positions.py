import math

import pytest
from tests.explain.explain_helpers import sinusoid

from polyhead.models.build import build
from polyhead_lab import positions
from polyhead_lab.short_training import make_small_config
from polyhead_lab.text_task import make_text_task

D = 16
N_TOKENS, N_POSITIONS = 258, 64


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@pytest.mark.parametrize(("scale", "factor"), [(True, math.sqrt(D)), (False, 1.0)])
def test_norms_and_cosines_match_reference(scale, factor):
    result = positions.measure_inputs(D, 3, position="sinusoidal", scale_embedding=scale)
    config = make_small_config(positions._TASK, d_model=D, n_layers=1, d_ff=16)
    rows = (factor * build(config, 3).encoder_embedding.token.weight.detach().double()).tolist()
    sinusoids = sinusoid(N_POSITIONS, D).double().tolist()
    row_norm, position_norm = (sum(math.hypot(*x) for x in table) / len(table) for table in (rows, sinusoids))
    assert len(rows) == N_TOKENS
    assert result.ratio == pytest.approx(row_norm / position_norm, rel=1e-4)
    cosines = [
        cosine(*([x + y for x, y in zip(row, p, strict=True)] for row in pair))
        for pair in zip(rows[::2], rows[1::2], strict=True)
        for p in sinusoids
    ]
    assert result.cosine == pytest.approx(sum(cosines) / len(cosines), rel=1e-4)


def test_shaw_adds_products_with_every_distance():
    text = make_text_task(6, 2)
    plain, alibi, shaw = (positions.count_step_flops(text, name) for name in ("sinusoidal", "alibi", "shaw"))
    products = 2 * 2 * 4 * 6 * 16 * 33  # rows, heads, tokens and width of 33 distances, 2 operations each
    assert alibi == plain
    assert shaw - plain == 2 * 2 * 3 * products  # keys and values, layers, passes forward and back
