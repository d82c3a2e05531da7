"""Tests of generation/shortlist/ibm_model1.py."""

import random
from collections import defaultdict

import pytest

from polyhead.generation.shortlist.ibm_model1 import train_ibm_model1


def by_hand(pairs, rounds):
    """IBM Model 1 as Brown et al. write it, in dictionaries."""
    t = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in pairs:
            for f in target:
                norm = sum(t[e, f] for e in [*source, None])
                for e in [*source, None]:
                    counts[e, f] += t[e, f] / norm
                    totals[e] += t[e, f] / norm
        t = defaultdict(float, {(e, f): count / totals[e] for (e, f), count in counts.items()})
    return t


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_lexicon_is_that_of_model_1(rounds):
    draw = random.Random(2)
    pairs = [
        (
            [draw.randrange(12) for _ in range(draw.randint(0, 5))],
            [draw.randrange(12) for _ in range(draw.randint(0, 6))],
        )
        for _ in range(30)
    ]
    made = train_ibm_model1(*zip(*pairs, strict=True), 12, rounds)
    wanted = by_hand(pairs, rounds)
    told = {
        (None if e == 12 else e, f): p
        for e, f, p in zip(made.source.tolist(), made.target.tolist(), made.probability, strict=True)
    }
    assert told.keys() == wanted.keys()
    assert all(told[key] == pytest.approx(wanted[key], rel=1e-9) for key in told)
    first, tokens = made.top_targets(3, 12)
    for e in range(12):
        own = sorted(((-p, f) for (source, f), p in told.items() if source == e))[:3]
        assert sorted(tokens[first[e] : first[e + 1]].tolist()) == sorted(f for _, f in own)
