import random
from collections import defaultdict

import pytest

from polyhead.generation.shortlist.shortlist import train_ibm_model1


def train_plain(pairs, rounds):
    """IBM Model 1 as Brown et al. write it; None is the empty source word."""
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
def test_lexicon_equals_ibm_model_1(rounds):
    rng = random.Random(2)

    def sentence(max_length):
        return [rng.randrange(12) for _ in range(rng.randint(0, max_length))]

    pairs = [(sentence(5), sentence(6)) for _ in range(30)]
    lexicon = train_ibm_model1(*zip(*pairs, strict=True), 12, rounds)
    entries = zip(lexicon.source.tolist(), lexicon.target.tolist(), lexicon.probability, strict=True)
    actual = {(None if e == 12 else e, f): p for e, f, p in entries}
    expected = train_plain(pairs, rounds)
    assert actual.keys() == expected.keys()
    assert all(actual[key] == pytest.approx(expected[key], rel=1e-9) for key in actual)
    offsets, tokens = lexicon.top_targets(3, 12)
    for e in range(12):
        best = sorted(((-p, f) for (source, f), p in actual.items() if source == e))[:3]
        assert sorted(tokens[offsets[e] : offsets[e + 1]].tolist()) == sorted(f for _, f in best)
