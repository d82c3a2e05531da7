import json
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.core.errors import UserError
from polyhead.data.batching.length_bucketing import (
    LengthBucketSampler,
    fill_rate,
    plan_epoch,
    plan_eval_batches,
)
from polyhead.train.progress import Progress

ROWS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=0, max_size=300)


def draw_lengths(n):
    """Lengths like those of a corpus: the sides of a pair are similar."""
    rng = np.random.default_rng(0)
    source = rng.poisson(12, n) + 2
    return source, np.maximum(2, source + rng.integers(-4, 5, n))


def split_sides(rows):
    return np.array(rows, dtype=np.int64).reshape(-1, 2).T


def cost(rows, source, target):
    return len(rows) * max(max(source[i], target[i]) for i in rows)


def to_lists(batches):
    return [rows.tolist() for rows in batches]


@given(ROWS, st.integers(60, 500), st.integers(0, 2**64), st.integers(0, 10**6))
def test_every_row_is_in_one_batch_within_budget(rows, max_tokens, seed, epoch):
    source, target = split_sides(rows)
    options = {"max_tokens": max_tokens, "seed": seed, "epoch": epoch}
    batches, repeats = (plan_epoch(source, target, **options) for _ in range(2))
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    assert all(0 < cost(batch, source, target) <= max_tokens for batch in batches)
    assert to_lists(batches) == to_lists(repeats)


@given(ROWS.filter(bool), st.integers(60, 500))
def test_epochs_have_equally_many_full_batches(rows, max_tokens):
    source, target = split_sides(rows)
    longest, sizes = np.maximum(source, target), set()
    for epoch in range(3):
        batches = plan_epoch(source, target, max_tokens=max_tokens, seed=1, epoch=epoch)
        sizes.add(len(batches))
        batches.sort(key=lambda batch: (longest[batch].max(), longest[batch].min(), -len(batch)))
        for batch, following in pairwise(batches):
            assert (len(batch) + 1) * longest[following].min() > max_tokens
    assert len(sizes) == 1


@pytest.mark.acceptance("A12")
@given(ROWS, st.integers(1, 80))
def test_eval_batches_are_within_budget_or_one_row(rows, budget):
    source, target = split_sides(rows)
    batches = plan_eval_batches(source, target, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(rows)))
    assert all(cost(batch, source, target) <= budget or len(batch) == 1 for batch in batches)
    longest = [max(rows[i]) for batch in batches for i in batch]
    assert longest == sorted(longest)
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * max(rows[following[0]]) > budget, "a batch could take the next row"


def test_epochs_and_seeds_differ_in_order_and_batches():
    source, target = draw_lengths(3000)
    seeds = ((1, 0), (1, 1), (2, 0), (0, 1))
    plans = [plan_epoch(source, target, max_tokens=600, seed=seed, epoch=epoch) for seed, epoch in seeds]
    assert len({tuple(np.concatenate(plan).tolist()) for plan in plans}) == 4
    first, second = ({frozenset(rows.tolist()) for rows in plan} for plan in plans[:2])
    assert len(first & second) < 0.2 * len(first)
    lengths = [int(source[rows].max()) for rows in plans[0]]
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.3  # long and short batches are mixed


@pytest.mark.acceptance("B9", "A12")
def test_resuming_anywhere_continues_the_order():
    source, target = draw_lengths(400)

    def plan(epoch):
        return plan_epoch(source, target, max_tokens=300, seed=5, epoch=epoch)

    steps = 3 * len(plan(0)) + 1
    batches, states, progress = [], [], Progress()
    stream = progress.iter_batches(plan)
    for _ in range(steps):
        states.append(json.loads(json.dumps(progress.to_json())))
        batches.append(next(stream).tolist())
    for step in range(steps):
        resumed = islice(Progress.from_json(states[step]).iter_batches(plan), steps - step)
        assert to_lists(resumed) == batches[step:]
    n = len(plan(0))
    for start in (0, n, 2 * n):
        assert sorted(i for rows in batches[start : start + n] for i in rows) == list(range(400))


@pytest.mark.acceptance("B9")
def test_order_is_stable_across_versions():
    plan = plan_epoch(np.arange(1, 13), np.arange(12, 0, -1), max_tokens=36, seed=1, epoch=0)
    assert to_lists(plan) == [[6, 5, 4, 7], [0, 11], [8, 3, 2], [9, 10, 1]]


@pytest.mark.acceptance("A8")
def test_pair_longer_than_the_budget_is_refused():
    message = "max_tokens is 64, but row 2 alone has 90 tokens; set train.max_tokens to 90 or more, or "
    with pytest.raises(UserError, match=message):
        plan_epoch(np.array([3, 4, 5]), np.array([3, 90, 5]), max_tokens=64, seed=1, epoch=0)
    plan = plan_epoch(np.array([3, 4]), np.array([3, 64]), max_tokens=64, seed=1, epoch=0)
    assert sorted(map(len, plan)) == [1, 1]


def test_sampler_has_the_batches_of_the_plan():
    source, target = draw_lengths(400)
    sampler = LengthBucketSampler(source, target, 300, 5)
    for epoch in range(2):
        plan = plan_epoch(source, target, max_tokens=300, seed=5, epoch=epoch)
        assert to_lists(sampler.epoch_batches(epoch)) == to_lists(plan)
    batches = sampler.epoch_batches()
    costs = [cost(rows, source, target) for rows in batches]
    assert cost(sampler.largest_batch(), source, target) == max(costs)
    cells = sum(len(rows) * int(source[rows].max() + target[rows].max()) for rows in batches)
    fill = int(source.sum() + target.sum()) / cells
    assert sampler.describe() == f"{len(costs)} batches per epoch, {fill:.1%} of their tokens are not padding"


def test_fill_rate_is_tokens_over_cells():
    source, target = np.array([2, 4, 3]), np.array([1, 5, 6])
    batches = [np.array([0, 1]), np.array([2])]
    assert fill_rate(batches, source, target) == pytest.approx(21 / (2 * (4 + 5) + 3 + 6))
    assert fill_rate([], source, target) == 1.0
    source, target = draw_lengths(20_000)
    assert fill_rate(plan_epoch(source, target, max_tokens=4096, seed=1, epoch=0), source, target) > 0.93
