"""Every row once an epoch, within the budget, in an order that (seed, epoch) alone decide."""

import json
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyhead.core.errors import UserError
from polyhead.data.batching.length_bucketing import (
    LengthBucketSampler,
    fill_rate,
    most_expensive,
    plan_epoch,
    plan_eval_batches,
    shard_rows,
)
from polyhead.train.progress import Progress

Ints = NDArray[np.int64]
ROWS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=0, max_size=300)


def sentences(n: int, seed: int = 0) -> tuple[Ints, Ints]:
    """Lengths like those of a corpus: the sides of a pair are alike."""
    rng = np.random.default_rng(seed)
    source = rng.poisson(12, n) + 2
    return source, np.maximum(2, source + rng.integers(-4, 5, n))


def cost(rows: Ints, source: Ints, target: Ints) -> int:
    """Cells of the larger side of a batch, padding counted."""
    return max(len(rows) * max(source[i] for i in rows), len(rows) * max(target[i] for i in rows))


@given(ROWS, st.integers(60, 500), st.integers(0, 2**64), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_every_row_is_in_one_batch_and_no_batch_exceeds_the_budget(
    lengths: list[tuple[int, int]], max_tokens: int, seed: int, epoch: int
) -> None:
    source, target = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    batches = plan_epoch(source, target, max_tokens=max_tokens, seed=seed, epoch=epoch)
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    assert all(0 < cost(rows, source, target) <= max_tokens for rows in batches)
    again = plan_epoch(source, target, max_tokens=max_tokens, seed=seed, epoch=epoch)
    assert [rows.tolist() for rows in batches] == [rows.tolist() for rows in again]


@given(ROWS.filter(bool), st.integers(60, 500))
@settings(max_examples=50, deadline=None)
def test_every_epoch_has_as_many_batches_and_none_could_take_the_next_row(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    source, target = np.array(lengths).T
    sizes = set()
    for epoch in range(3):
        batches = plan_epoch(source, target, max_tokens=max_tokens, seed=1, epoch=epoch)
        sizes.add(len(batches))
        longest = np.maximum(source, target)
        batches.sort(key=lambda rows: (longest[rows].max(), longest[rows].min(), -len(rows)))
        for rows, following in pairwise(batches):
            assert (len(rows) + 1) * longest[following].min() > max_tokens
    assert len(sizes) == 1


@pytest.mark.acceptance("A12")
@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 80))
def test_rows_that_are_only_read_keep_to_the_budget_and_longer_ones_are_alone(
    rows: list[tuple[int, int]], budget: int
) -> None:
    source, target = (np.array([row[side] for row in rows], dtype=np.int64) for side in (0, 1))
    batches = plan_eval_batches(source, target, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(rows)))
    for batch in batches:
        assert cost(batch, source, target) <= budget or len(batch) == 1
    longest = [max(rows[i]) for batch in batches for i in batch]
    assert longest == sorted(longest), "rows of like length are together"
    for batch, after in pairwise(batches):
        assert (len(batch) + 1) * max(rows[after[0]]) > budget, "no batch could take the next row"


def test_epochs_differ_in_order_and_company_and_seeds_too() -> None:
    source, target = sentences(3000)
    plans = [
        plan_epoch(source, target, max_tokens=600, seed=s, epoch=e)
        for s, e in ((1, 0), (1, 1), (2, 0), (0, 1))
    ]
    orders = {tuple(np.concatenate(plan).tolist()) for plan in plans}
    assert len(orders) == 4
    first, second = ({frozenset(rows.tolist()) for rows in plan} for plan in plans[:2])
    assert len(first & second) < 0.2 * len(first)
    lengths = [int(source[rows].max()) for rows in plans[0]]
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.3  # long and short batches are mixed


@pytest.mark.acceptance("A12")
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_together_take_every_row_once_an_epoch(world: int) -> None:
    for epoch in range(2):
        plan = plan_epoch(*sentences(500), max_tokens=200, seed=3, epoch=epoch)
        parts = [shard_rows(rows, world) for rows in plan]
        assert [len(dealt) for dealt in parts] == [min(world, len(rows)) for rows in plan]
        assert all(len(part) for dealt in parts for part in dealt)
        taken = np.concatenate([part for dealt in parts for part in dealt])
        assert sorted(taken.tolist()) == list(range(500))


@pytest.mark.acceptance("B9", "A12")
def test_resuming_anywhere_gives_the_rows_of_an_uninterrupted_run() -> None:
    source, target = sentences(400)

    def plan(epoch: int) -> list[Ints]:
        return plan_epoch(source, target, max_tokens=300, seed=5, epoch=epoch)

    steps = 3 * len(plan(0)) + 1
    whole, places, progress = [], [], Progress()
    stream = progress.iter_batches(plan)
    for _ in range(steps):
        places.append(json.loads(json.dumps(progress.to_json())))
        whole.append((next(stream), progress.epoch))
    ledger = np.concatenate([rows for rows, _ in whole]).tolist()
    for done in range(steps):
        resumed = islice(Progress.from_json(places[done]).iter_batches(plan), steps - done)
        rows = [rows for rows, _ in whole[:done]] + list(resumed)
        assert np.concatenate(rows).tolist() == ledger
    for epoch in range(3):
        here = [rows for rows, e in whole if e == epoch]
        assert np.sort(np.concatenate(here)).tolist() == list(range(400))


@pytest.mark.acceptance("B9")
def test_the_order_is_the_one_of_other_versions() -> None:
    source, target = np.arange(1, 13), np.arange(12, 0, -1)
    plan = plan_epoch(source, target, max_tokens=36, seed=1, epoch=0)
    assert [rows.tolist() for rows in plan] == GOLDEN


GOLDEN = [[6, 5, 4, 7], [0, 11], [8, 3, 2], [9, 10, 1]]


@pytest.mark.acceptance("A8")
def test_a_pair_longer_than_the_budget_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(UserError) as caught:
        plan_epoch(np.array([3, 4, 5]), np.array([3, 90, 5]), max_tokens=64, seed=1, epoch=0)
    assert str(caught.value) == (
        "max_tokens is 64, but row 1 alone has 90 tokens; "
        "set train.max_tokens to 90 or more, or data.max_len to 64 or less"
    )
    exact = plan_epoch(np.array([3, 4]), np.array([3, 64]), max_tokens=64, seed=1, epoch=0)
    assert sorted(map(len, exact)) == [1, 1]


@pytest.mark.acceptance("A8")
def test_the_costliest_batch_is_the_one_of_most_cells() -> None:
    source, target = np.array([5, 5, 5, 9, 9, 2]), np.array([4, 5, 6, 7, 8, 20])
    batches = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5])]
    assert most_expensive(batches, source, target) == 2  # 18, 18 and 20 cells


def test_batches_by_length_are_those_of_the_plan() -> None:
    source, target = sentences(400)
    found = LengthBucketSampler(source, target, 300, 5)
    for epoch in range(2):
        plan = plan_epoch(source, target, max_tokens=300, seed=5, epoch=epoch)
        assert [rows.tolist() for rows in found.epoch_batches(epoch)] == [rows.tolist() for rows in plan]
    costs = [cost(rows, source, target) for rows in found.epoch_batches()]
    assert cost(found.largest_batch(), source, target) == max(costs)
    used, cells = int(source.sum() + target.sum()), 0
    for rows in found.epoch_batches():
        cells += len(rows) * int(source[rows].max() + target[rows].max())
    assert (
        found.describe()
        == f"{len(costs)} batches per epoch, {used / cells:.1%} of their tokens are not padding"
    )


def test_the_fill_rate_is_tokens_over_cells() -> None:
    source, target = np.array([2, 4, 3]), np.array([1, 5, 6])
    batches = [np.array([0, 1]), np.array([2])]
    assert fill_rate(batches, source, target) == pytest.approx(
        (2 + 1 + 4 + 5 + 3 + 6) / (2 * (4 + 5) + 3 + 6)
    )
    assert fill_rate([], source, target) == 1.0


def test_batches_of_a_corpus_are_full() -> None:
    source, target = sentences(20_000)
    batches = plan_epoch(source, target, max_tokens=4096, seed=1, epoch=0)
    assert fill_rate(batches, source, target) > 0.93
    random = np.array_split(np.random.default_rng(0).permutation(20_000), len(batches))
    assert fill_rate(random, source, target) < 0.6
