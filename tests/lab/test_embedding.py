import math

import pytest

from polyhead.lab import embedding
from polyhead.lab.short_training import make_small_config
from polyhead.models.build import build

D = 16
N_TOKENS, N_POSITIONS = 258, 64


def sinusoid(position):
    """A row of section 3.5 of Vaswani et al., 2017, number by number."""
    angles = [position / 10_000 ** (2 * (i // 2) / D) for i in range(D)]
    return [math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)]


def norm(vector):
    return math.sqrt(sum(x * x for x in vector))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (norm(a) * norm(b))


@pytest.mark.parametrize(("scale", "factor"), [(True, math.sqrt(D)), (False, 1.0)])
def test_rows_and_positions_are_measured_as_by_hand(scale, factor):
    measured = embedding.measure_inputs(D, 3, position="sinusoidal", scale_embedding=scale)
    config = make_small_config(embedding._TASK, d_model=D, n_layers=1, d_ff=16)
    table = build(config, 3).encoder_embedding.token.weight.detach().tolist()
    rows = [[factor * x for x in row] for row in table]
    positions = [sinusoid(p) for p in range(N_POSITIONS)]
    ratio = sum(map(norm, rows)) / N_TOKENS / (sum(map(norm, positions)) / N_POSITIONS)
    assert measured.ratio == pytest.approx(ratio, rel=1e-4)

    def add(row, position):
        return [x + y for x, y in zip(row, position, strict=True)]

    cosines = [
        cosine(add(a, p), add(b, p)) for a, b in zip(rows[::2], rows[1::2], strict=True) for p in positions
    ]
    assert measured.cosine == pytest.approx(sum(cosines) / len(cosines), rel=1e-4)


def test_learned_positions_are_as_large_as_rows_without_the_factor():
    measured = embedding.measure_inputs(256, 1, position="learned", scale_embedding=False)
    assert measured.ratio == pytest.approx(1, abs=0.05)
    scaled = embedding.measure_inputs(256, 1, position="learned", scale_embedding=True)
    assert scaled.ratio == pytest.approx(16 * measured.ratio, rel=1e-4)
