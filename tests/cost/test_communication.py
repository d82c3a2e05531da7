"""Volumes worked by hand, and a ring that is walked message by message."""

from __future__ import annotations

import pytest

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.communication import (
    ParallelLayout,
    bubble_ratio,
    estimate_traffic,
    idle_fraction,
    point_to_point_bytes,
    ring_all_reduce_bytes,
    tensor_parallel_bytes,
)
from polyhead.cost.workload import BatchShape
from polyhead.models import preset_config

CONFIG = ModelConfig(kind="decoder", vocab_size=50, d_model=16, n_layers=4, n_heads=4)


def walked(numbers: list[list[float]]) -> tuple[list[list[float]], int]:
    """A ring all-reduce done: rank r sends piece after piece to r + 1; the sums, and
    numbers sent by a rank.
    """
    n, size = len(numbers), len(numbers[0]) // len(numbers)
    at = [[list(row[i * size : (i + 1) * size]) for i in range(n)] for row in numbers]
    sent = 0
    for step in range(2 * (n - 1)):
        moved = [(r, (r - step) % n) for r in range(n)]
        pieces = [list(at[r][i]) for r, i in moved]
        for (r, i), piece in zip(moved, pieces, strict=True):
            mine = at[(r + 1) % n][i]
            at[(r + 1) % n][i] = [a + b for a, b in zip(mine, piece, strict=True)] if step < n - 1 else piece
        sent += size
    return [[x for piece in row for x in piece] for row in at], sent


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_sends_two_times_all_but_one_share(n: int) -> None:
    numbers = [[float(r * 100 + i) for i in range(24)] for r in range(n)]
    sums, sent = walked(numbers)
    assert sums == [[sum(column) for column in zip(*numbers, strict=True)]] * n
    assert ring_all_reduce_bytes(24, n) == sent


def test_six_billion_gradients_of_two_bytes_are_twelve_gigabytes() -> None:
    nbytes = 6e9 * 2
    assert nbytes == 12e9
    assert ring_all_reduce_bytes(nbytes, 8) == 21e9  # 2 x 7/8 of them
    assert ring_all_reduce_bytes(nbytes, 1) == 0


def simulated(p: int, m: int) -> float:
    """Share of time that stages idle when micro-batches pass through p stages in turn, forward and back in
    unit times.
    """
    done = [[0] * m for _ in range(p)]
    for i in range(m):
        for s in range(p):
            done[s][i] = 1 + max(done[s - 1][i] if s else 0, done[s][i - 1] if i else 0)
    return 1 - m / done[-1][-1]


@pytest.mark.parametrize(("p", "m"), [(4, 8), (1, 3), (8, 8), (2, 16)])
def test_the_bubble_is_that_of_a_pipeline_that_runs(p: int, m: int) -> None:
    assert idle_fraction(p, m) == pytest.approx(simulated(p, m))
    assert bubble_ratio(p, m) == pytest.approx(idle_fraction(p, m) / (1 - idle_fraction(p, m)))


def test_tensor_parallel_sums_twice_a_layer_each_way() -> None:
    # Shoeybi et al., 2019: 4 all-reduces a layer; B S H = 2 x 8 x 16 numbers of 4 bytes among 2 ranks are
    # sent once
    assert tensor_parallel_bytes(2, 8, 16, layers=3, ranks=2, itemsize=4) == 4 * 3 * (2 * 8 * 16 * 4)


def test_what_a_rank_sends() -> None:
    sent = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, ParallelLayout(4, 2, 2, 4, 2, 2, bandwidth=1e6))
    assert sent.data == 2 * 3 / 4 * 1000 * 2 / 4
    assert sent.tensor == 4 * (4 / 2) * (8 * 10 * 16 * 2)
    assert sent.pipeline == point_to_point_bytes(8, 10, 16, 2) == 2 * 8 * 10 * 16 * 2
    assert (sent.bubble, sent.idle) == (1 / 4, 1 / 5)
    assert (sent.ranks, sent.share) == (16, 1 / 4)
    assert (sent.held_gpipe, sent.held_1f1b) == (4, 2)
    assert sent.seconds == sent.total / 1e6
    more = estimate_traffic(
        CONFIG, BatchShape(8, 10), 1000, ParallelLayout(4, 2, 2, 4, 2, 2, bandwidth=1e6), accumulate=3
    )
    assert (more.data, more.tensor, more.pipeline) == (sent.data, 3 * sent.tensor, 3 * sent.pipeline)
    alone = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, ParallelLayout())
    assert alone.total == alone.bubble == 0


def test_a_decoder_with_a_source_sums_three_times() -> None:
    config = preset_config("tiny", 50)
    sent = estimate_traffic(config, BatchShape(2, 5, 7), 1000, ParallelLayout(tensor_parallel=2))
    assert sent.tensor == 4 * (2 * 2 * 2 * 7 + 2 * 3 * 2 * 5) * 128 * 4


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (ParallelLayout(tensor_parallel=3), "does not divide n_heads"),
        (ParallelLayout(pipeline=5), "the model 4 layers"),
        (ParallelLayout(micro_batches=9), "more than the 8 rows"),
        (ParallelLayout(data_parallel=0), "data-parallel is 0"),
    ],
)
def test_what_cannot_be_is_said(layout: ParallelLayout, said: str) -> None:
    with pytest.raises(UserError, match=said):
        layout.check(CONFIG, BatchShape(8, 10))
