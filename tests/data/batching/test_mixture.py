import itertools

import numpy as np
import pytest

from polyhead.data.batching.length_bucketing import LengthBucketSampler
from polyhead.data.batching.mixture import MixedLengthSampler, Mixture, mix_segments, plan_mixed_windows
from polyhead.data.batching.packing import Segments

SIZES = [7, 50, 3]


def make_mixture(weights=(1, 1, 1), temperature=1.0, seed=3):
    return Mixture(tuple(map(float, weights)), temperature, seed)


# weight * size^(1/T) by hand: 2 * 7 : 50 : 3 of 60 texts is 12.54 : 44.78 : 2.69, and so on
@pytest.mark.parametrize(
    ("weights", "temperature", "sizes", "expected"),
    [
        ((1, 1), 1, [100, 900], [100, 900]),
        ((1, 1), 2, [100, 900], [250, 750]),  # 10 : 30
        ((3, 1), 1, [100, 900], [250, 750]),
        ((1, 3), 2, [100, 900], [100, 900]),  # 10 : 90
        ((1, 1), 1e9, [100, 900], [500, 500]),
        ((1, 1), 0.5, [100, 900], [12, 988]),  # 10,000 : 810,000 is 12.2 : 987.8
        ((1, 1), 1e-4, [100, 900], [0, 1000]),  # a power that overflows
        ((1e308, 1e308), 1, [100, 900], [100, 900]),
        ((2, 1, 1), 1, SIZES, [12, 45, 3]),  # the two that are left go to .78 and .69
        ((1, 1, 1), 1, [1, 1, 1], [1, 1, 1]),
        ((1, 1, 2), 1, [1, 1, 1], [1, 1, 1]),  # 0.75 : 0.75 : 1.5
    ],
)
def test_shares_are_those_of_the_formula(weights, temperature, sizes, expected):
    assert make_mixture(weights, temperature).count_texts(sizes) == expected


def stream_of(seed, corpus, size):
    """All passes over a corpus, each in the order of random bits of (seed, 4, corpus, number of the pass)."""
    for number in itertools.count():
        bits = np.random.Philox(np.random.SeedSequence([seed, 4, corpus, number])).random_raw(size)
        yield from sorted(range(size), key=bits.__getitem__)


@pytest.mark.parametrize(("weights", "temperature"), [((1, 1, 1), 1), ((2, 1, 1), 1), ((1, 1, 1), 5)])
def test_epochs_continue_the_passes_of_each_corpus(weights, temperature):
    mixture = make_mixture(weights, temperature)
    counts = mixture.count_texts(SIZES)
    streams = [stream_of(3, corpus, size) for corpus, size in enumerate(SIZES)]
    for epoch in range(9):
        rows = mixture.select(SIZES, epoch, lambda corpus, _: 100 * corpus + np.arange(SIZES[corpus]))
        expected = [
            100 * corpus + row
            for corpus, (stream, count) in enumerate(zip(streams, counts, strict=True))
            for row in itertools.islice(stream, count)
        ]
        assert rows.tolist() == expected


def test_equal_weights_give_each_text_once():
    rows = make_mixture().select(SIZES, 4, lambda corpus, _: 100 * corpus + np.arange(SIZES[corpus]))
    assert sorted(rows.tolist()) == [*range(7), *range(100, 150), *range(200, 203)]


def test_batches_have_the_rows_of_the_mixture():
    lengths = np.random.default_rng(0).integers(1, 20, 60)
    sampler = LengthBucketSampler(lengths, lengths, 64, 3)
    starts, mixture = np.array([0, 7, 57, 60]), make_mixture(temperature=4)
    for epoch in range(3):
        batches = MixedLengthSampler(sampler, mixture, starts).epoch_batches(epoch)
        selected = mixture.select(
            SIZES, epoch, lambda corpus, _: np.arange(starts[corpus], starts[corpus + 1])
        )
        assert sorted(np.concatenate(batches).tolist()) == sorted(selected.tolist())
        assert max(len(rows) * lengths[rows].max() for rows in batches) <= 64


def test_one_corpus_is_batched_as_a_path():
    lengths = np.random.default_rng(0).integers(1, 20, 60)
    sampler = LengthBucketSampler(lengths, lengths[::-1], 64, 3)
    mixed = MixedLengthSampler(sampler, make_mixture((1,)), np.array([0, 60]))
    for epoch in range(3):
        for rows, expected in zip(mixed.epoch_batches(epoch), sampler.epoch_batches(epoch), strict=True):
            assert rows.tolist() == expected.tolist()


def test_windows_stay_in_their_corpus_with_its_share():
    mixture, starts, width = make_mixture((1, 3), 1), np.array([0, 101, 305]), 10
    sizes = [9, 19]  # whole windows after any offset
    expected = mixture.count_texts(sizes)
    for epoch in range(4):
        windows = np.concatenate(plan_mixed_windows(mixture, starts, width, 1, epoch))
        is_first = windows < 101
        assert [int(is_first.sum()), int((~is_first).sum())] == expected
        assert (windows[is_first] + width < 101).all()  # with the last label
        assert (windows[~is_first] + width < 305).all()
    again = np.concatenate(plan_mixed_windows(mixture, starts, width, 1, epoch))
    assert again.tolist() == windows.tolist()


def test_segments_are_texts_and_parts_of_long_ones():
    short = Segments(np.arange(0, 40, 4), np.full(10, 4))
    long = Segments(np.array([100]), np.array([45]))
    mixture = make_mixture((1, 1))
    found = mix_segments(mixture, [short, long], 10, 0)  # the long text has up to 6 segments at any offset
    assert sorted(found.starts[found.starts < 100].tolist()) == short.starts.tolist()
    of_long = found.starts >= 100
    tokens = np.concatenate(
        [
            np.arange(start, start + n)
            for start, n in zip(found.starts[of_long], found.lengths[of_long], strict=True)
        ]
    )
    assert sorted(tokens.tolist()) == list(range(100, 145))
    assert found.lengths.min() > 0 and found.lengths.max() <= 10
    epochs = [mix_segments(mixture, [short, long], 10, epoch).starts for epoch in range(6)]
    assert len({tuple(sorted(starts[starts >= 100].tolist())) for starts in epochs}) > 1  # cut elsewhere
