"""The cache of heavy hitters against lists of tokens and what was put on them."""

from __future__ import annotations

import pytest
import torch

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, attend, attention_mask

SHAPE = CacheShape(1, 2, 3, 5, torch.float32, torch.device("cpu"))
HEADS = 4


class ByHand:
    """Of one row and one key head: [position, key, value, sum of weights] of all that is kept."""

    def __init__(self, budget, recent, sink):
        self.budget, self.recent, self.sink, self.kept, self.length = budget, recent, sink, [], 0

    def step(self, q, k, v):
        """Queries (group, n, D), keys and values (n, ...): the outputs (group, n, Dv)."""
        for t in range(len(k)):
            self.kept.append([self.length + t, k[t], v[t], 0.0])
        out = torch.zeros(len(q), len(k), 5)
        for h in range(len(q)):
            for t in range(len(k)):
                shown = [token for token in self.kept if token[0] <= self.length + t]
                weights = torch.softmax(torch.stack([q[h, t] @ token[1] / 3**0.5 for token in shown]), 0)
                for token, weight in zip(shown, weights.tolist(), strict=True):
                    token[3] += weight
                    out[h, t] += weight * token[2]
        self.length += len(k)
        while len(self.kept) > self.budget:
            may_go = [x for x in self.kept if x[0] >= self.sink and x[0] < self.length - self.recent]
            self.kept.remove(min(may_go, key=lambda token: token[3]))
        return out


class Fed:
    def __init__(self, n_rows, **options):
        self.cache = CACHE.build(Choice("h2o", **options), SHAPE, n_rows, 99)
        self.rows = [[ByHand(**options) for _ in range(2)] for _ in range(n_rows)]

    def step(self, rows, lengths):
        pos = torch.full((len(rows), max(lengths)), -1)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            pos[i, :n] = torch.arange(self.rows[row][0].length, self.rows[row][0].length + n)
        self.cache.prepare_step(rows, pos)
        q = 3 * torch.randn(len(rows), HEADS, pos.size(1), 3)
        k, v = torch.randn(len(rows), 2, pos.size(1), 3), torch.randn(len(rows), 2, pos.size(1), 5)
        (layer,) = self.cache.layers
        poison = (pos < 0)[:, None, :, None]
        kv = layer.update(KV(k.masked_fill(poison, torch.nan), v.masked_fill(poison, torch.nan)))
        out = attend(
            q, kv, attention_mask(pos, kv, pos.size(1), True), causal=True, hooks=[layer.weights_hook]
        )
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            for head, hand in enumerate(self.rows[row]):
                group = slice(2 * head, 2 * head + 2)
                wanted = hand.step(q[i, group, :n], k[i, head, :n], v[i, head, :n])
                torch.testing.assert_close(out[i, group, :n], wanted, rtol=1e-4, atol=1e-5)
        self.check()

    def check(self):
        (layer,) = self.cache.layers
        for row, heads in enumerate(self.rows):
            for head, hand in enumerate(heads):
                there = (layer.pos[row, head] >= 0).nonzero()[:, 0]
                held = {int(layer.pos[row, head, s]): float(layer.score[row, head, s]) for s in there}
                assert held == pytest.approx({token[0]: token[3] for token in hand.kept}, abs=1e-4)


@pytest.mark.parametrize(("budget", "recent", "sink"), [(6, 3, 1), (4, 1, 0), (5, 2, 3)])
def test_what_is_looked_at_least_goes_head_by_head_never_the_sink_nor_the_newest(budget, recent, sink):
    torch.manual_seed(0)
    fed = Fed(3, budget=budget, recent=recent, sink=sink)
    for lengths in ([9, 2, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [4, 0, 2], [1, 1, 0], *[[1, 1, 1]] * 9):
        fed.step([0, 1, 2], lengths)
    fed.step([2, 0], [1, 5])
    fed.step([1], [1])
    fed.step([2, 0], [1, 1])
    kept = {tuple(sorted(layer_pos.tolist())) for layer_pos in fed.cache.layers[0].pos.flatten(0, 1)}
    assert len(kept) > 2, "heads choose for themselves"


def copy(heads):
    made = [ByHand(hand.budget, hand.recent, hand.sink) for hand in heads]
    for new, hand in zip(made, heads, strict=True):
        new.kept, new.length = [list(token) for token in hand.kept], hand.length
    return made


def test_rows_that_are_copied_take_their_sums_along():
    torch.manual_seed(1)
    fed = Fed(2, budget=5, recent=2, sink=1)
    fed.step([0, 1], [4, 8])
    fed.cache.select([1, 0, 1])
    fed.rows = [copy(fed.rows[i]) for i in (1, 0, 1)]
    fed.check()
    for _ in range(4):
        fed.step([0, 1, 2], [1, 1, 1])
    fed.cache.fork(0, 1)
    fed.rows[1] = copy(fed.rows[0])
    fed.cache.release(2)
    fed.rows[2] = [ByHand(5, 2, 1) for _ in range(2)]
    for _ in range(7):
        fed.step([0, 1, 2], [1, 1, 1])


def test_memory_is_the_budget_and_one_slot_for_the_newest():
    fed = Fed(2, budget=6, recent=3, sink=1)
    slot = 2 * ((3 + 5) * 4 + 8 + 4)  # two heads: key, value, position, sum
    assert fed.cache.memory_usage() == (2 * 7 * slot, 0, 2 * 7 * slot, 0)
    fed.step([0, 1], [20, 2])
    assert fed.cache.memory_usage() == (2 * 7 * slot, 8 * slot, 2 * 7 * slot, 0)
    assert CACHE.build(Choice("h2o"), SHAPE, 1, 9).layers[0].pos.size(2) == 10


@pytest.mark.parametrize(
    "options", [{"budget": 4, "recent": 3, "sink": 2}, {"recent": 0}, {"sink": -1}, {"budget": 1}]
)
def test_a_budget_has_room_for_what_is_never_let_go(options):
    with pytest.raises(
        UserError, match="expected at least 1 recent, a sink of 0 or more, and a budget of at least"
    ):
        CACHE.build(Choice("h2o", **options), SHAPE, 1, 9)


def test_attention_that_shows_no_weights_is_told():
    cache = CACHE.build(Choice("h2o"), SHAPE, 1, 9)
    for t in range(2):
        cache.prepare_step([0], torch.tensor([[t]]))
        new = KV(torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 5))
        if t == 0:
            cache.layers[0].update(new)
    with pytest.raises(UserError, match="does not call its hooks"):
        cache.layers[0].update(new)
