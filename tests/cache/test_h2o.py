import pytest
import torch
from tests.cache.cache_helpers import SHAPE, Harness

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV


class Reference:
    """One row and one key head: [position, key, value, sum of weights] of all stored tokens."""

    def __init__(self, budget, recent, sink):
        self.budget, self.recent, self.sink, self.tokens, self.length = budget, recent, sink, [], 0

    def step(self, q, k, v):
        self.tokens += [[self.length + t, k[t], v[t], 0.0] for t in range(len(k))]
        out = torch.zeros(len(q), len(k), 5)
        for h in range(len(q)):
            for t in range(len(k)):
                visible_tokens = [token for token in self.tokens if token[0] <= self.length + t]
                logits = [q[h, t] @ token[1] / 3**0.5 for token in visible_tokens]
                weights = torch.softmax(torch.stack(logits), 0)
                for token, weight in zip(visible_tokens, weights.tolist(), strict=True):
                    token[3] += weight
                    out[h, t] += weight * token[2]
        self.length += len(k)
        while len(self.tokens) > self.budget:
            evictable = [x for x in self.tokens if self.sink <= x[0] < self.length - self.recent]
            self.tokens.remove(min(evictable, key=lambda token: token[3]))
        return out


def make_harness(n_rows, **options):
    return Harness(Choice("h2o", **options), lambda _: Reference(**options), n_rows, q_scale=3)


def check_scores(harness):
    (layer,) = harness.cache.layers
    for row, heads in enumerate(harness.rows):
        for head, reference in enumerate(heads):
            slots = (layer.pos[row, head] >= 0).nonzero()[:, 0]
            scores = {int(layer.pos[row, head, s]): float(layer.score[row, head, s]) for s in slots}
            assert scores == pytest.approx({token[0]: token[3] for token in reference.tokens}, abs=1e-4)


@pytest.mark.parametrize(("budget", "recent", "sink"), [(6, 3, 1), (4, 1, 0), (5, 2, 3)])
def test_eviction_is_by_attention_per_head(budget, recent, sink):
    torch.manual_seed(0)
    harness = make_harness(3, budget=budget, recent=recent, sink=sink)
    lengths = [[9, 2, 1], *[[1, 1, 1]] * 3, [4, 0, 2], [1, 1, 0], *[[1, 1, 1]] * 9]
    steps = [([0, 1, 2], n) for n in lengths]
    for rows, n in [*steps, ([2, 0], [1, 5]), ([1], [1]), ([2, 0], [1, 1])]:
        harness.step(rows, n)
        check_scores(harness)
    positions = {tuple(sorted(pos.tolist())) for pos in harness.cache.layers[0].pos.flatten(0, 1)}
    assert len(positions) > 2, "heads evict different tokens"


def test_memory_is_fixed_and_hooks_are_needed():
    harness = make_harness(2, budget=6, recent=3, sink=1)
    slot = 2 * ((3 + 5) * 4 + 8 + 4)  # two heads: key, value, position, sum
    assert harness.cache.memory_usage() == (2 * 7 * slot, 0, 2 * 7 * slot, 0)
    harness.step([0, 1], [20, 2])
    assert harness.cache.memory_usage() == (2 * 7 * slot, 8 * slot, 2 * 7 * slot, 0)
    assert CACHE.build(Choice("h2o"), SHAPE, 1, 9).layers[0].pos.size(2) == 10
    cache = CACHE.build(Choice("h2o"), SHAPE, 1, 9)
    new = KV(torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 5))
    cache.prepare_step([0], torch.tensor([[0]]))
    cache.layers[0].update(new)
    cache.prepare_step([0], torch.tensor([[1]]))
    with pytest.raises(UserError, match="does not call its hooks"):
        cache.layers[0].update(new)
