"""The cache of clusters against lists of clusters and of recent tokens."""

from __future__ import annotations

import copy

import pytest
import torch

from polyhead.cache.subgen import draw_uniforms
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, Window, attend, attention_mask

SHAPE = CacheShape(1, 2, 3, 5, torch.float32, torch.device("cpu"))


class ByHand:
    """Of one row and one key head: clusters, as lists of (key, value), and recent tokens."""

    def __init__(self, budget, recent, radius):
        self.recent, self.radius, self.most = recent, radius, budget - recent
        self.clusters, self.newest, self.length = [], [], 0

    def step(self, q, k, v):
        """(group, n, D), (n, D), (n, Dv) -> (group, n, Dv): every token of a cluster counts as much as its
        means.
        """
        while len(self.newest) > self.recent:
            self.leave()
        slots = [(len(c), *(sum(x) / len(c) for x in zip(*c, strict=True))) for c in self.clusters]
        slots += [(1, key, value) for key, value in self.newest]
        out = torch.zeros(len(q), len(k), 5)
        for h in range(len(q)):
            for t in range(len(k)):
                shown = slots + [(1, k[s], v[s]) for s in range(t + 1)]
                weights = [n * torch.exp(q[h, t] @ key / 3**0.5) for n, key, _ in shown]
                out[h, t] = sum(w * value for w, (_, _, value) in zip(weights, shown, strict=True)) / sum(
                    weights
                )
        self.newest += list(zip(k, v, strict=True))
        self.length += len(k)
        return out

    def leave(self):
        key, value = self.newest.pop(0)
        centres = [sum(k for k, _ in c) / len(c) for c in self.clusters]
        distances = [float((key - centre).norm()) for centre in centres]
        if len(self.clusters) < self.most and min([*distances, float("inf")]) > self.radius:
            self.clusters.append([(key, value)])
        else:
            self.clusters[distances.index(min(distances))].append((key, value))


class Fed:
    def __init__(self, n_rows, **options):
        self.cache = CACHE.build(Choice("subgen", **options), SHAPE, n_rows, 99)
        self.rows = [[ByHand(**options) for _ in range(2)] for _ in range(n_rows)]

    def step(self, rows, lengths):
        pos = torch.full((len(rows), max(lengths)), -1)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            pos[i, :n] = torch.arange(self.rows[row][0].length, self.rows[row][0].length + n)
        self.cache.prepare_step(rows, pos)
        q = torch.randn(len(rows), 4, pos.size(1), 3)
        k, v = torch.randn(len(rows), 2, pos.size(1), 3), torch.randn(len(rows), 2, pos.size(1), 5)
        (layer,) = self.cache.layers
        poison = (pos < 0)[:, None, :, None]
        kv = layer.update(KV(k.masked_fill(poison, torch.nan), v.masked_fill(poison, torch.nan)))
        out = attend(q, kv, attention_mask(pos, kv, pos.size(1), True), causal=True)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            for head, hand in enumerate(self.rows[row]):
                group = slice(2 * head, 2 * head + 2)
                wanted = hand.step(q[i, group, :n], k[i, head, :n], v[i, head, :n])
                torch.testing.assert_close(out[i, group, :n], wanted, rtol=1e-4, atol=1e-5)
        counts = layer.count.sum(-1)
        assert counts.tolist() == [[float(hand.length) for hand in heads] for heads in self.rows], (
            "no token is lost"
        )


@pytest.mark.parametrize(("budget", "recent", "radius"), [(6, 3, 0.0), (5, 1, 1.5), (9, 4, 1.0), (3, 2, 0.5)])
def test_clusters_count_for_their_tokens_and_the_newest_are_as_they_came(budget, recent, radius):
    torch.manual_seed(0)
    fed = Fed(3, budget=budget, recent=recent, radius=radius)
    for lengths in (
        [9, 2, 1],
        [1, 1, 1],
        [1, 1, 1],
        [1, 1, 0],
        [4, 0, 2],
        [1, 1, 0],
        *[[1, 1, 1]] * 5,
        [3, 11, 2],
    ):
        fed.step([0, 1, 2], lengths)
    fed.step([2, 0], [1, 5])
    fed.step([1], [1])
    fed.step([2, 0], [1, 1])
    fed.cache.select([1, 2, 1])
    fed.rows = [copy.deepcopy(fed.rows[i]) for i in (1, 2, 1)]
    fed.step([0, 1, 2], [1, 1, 1])
    fed.cache.fork(0, 1)
    fed.rows[1] = copy.deepcopy(fed.rows[0])
    fed.cache.release(2)
    fed.rows[2] = [ByHand(budget, recent, radius) for _ in range(2)]
    for _ in range(6):
        fed.step([0, 1, 2], [1, 1, 1])


def test_tokens_alike_are_one_slot_that_loses_nothing():
    """Keys and values that come again: three slots hold a hundred tokens, and give what all of them give."""
    torch.manual_seed(1)
    cache = CACHE.build(Choice("subgen", budget=8, recent=1), SHAPE, 1, 200)
    keys, values = torch.randn(3, 2, 3), torch.randn(3, 2, 5)
    which = torch.randint(3, (100,))
    k, v = keys[which].transpose(0, 1)[None], values[which].transpose(0, 1)[None]
    for t in range(100):
        pos = torch.tensor([[t]])
        cache.prepare_step([0], pos)
        kv = cache.layers[0].update(KV(k[:, :, t : t + 1], v[:, :, t : t + 1]))
    q = torch.randn(1, 4, 1, 3)
    assert int((cache.layers[0].pos[0, 0] >= 0).sum()) == 3 + 2
    torch.testing.assert_close(attend(q, kv, kv.mask), attend(q, KV(k, v)), rtol=1e-4, atol=1e-5)


def test_memory_is_the_budget_and_one_slot_for_the_newest():
    fed = Fed(2, budget=6, recent=2, radius=0.0)
    slot = (3 + 5) * 4 + 8 + 4
    assert fed.cache.memory_usage()[:2] == (2 * 2 * 7 * slot, 0)
    fed.step([0, 1], [20, 3])
    assert fed.cache.memory_usage()[:2] == (2 * 2 * 7 * slot, 2 * (6 + 3) * slot)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"budget": 4, "recent": 4}, SHAPE, "at least 1 recent token, a budget above that"),
        ({"recent": 0}, SHAPE, "at least 1 recent token"),
        ({"radius": -1.0}, SHAPE, "a radius of 0 or more"),
        (
            {"budget": 4, "recent": 3, "values": "sampled"},
            SHAPE,
            "leaves 1 slot, but values: sampled needs 2, for a cluster and for a sample",
        ),
        (
            {},
            SHAPE._replace(needs_distances=True),
            r"for its position \(alibi, t5, shaw, disentangled\): use cache 'h2o'",
        ),
        ({}, SHAPE._replace(windows=(Window(4),)), "for its window: use cache 'h2o'"),
    ],
)
def test_what_cannot_work_is_refused(options, shape, message):
    with pytest.raises(UserError, match=message):
        CACHE.build(Choice("subgen", **options), shape, 1, 9)


class SampledByHand:
    """Algorithm 1 of the paper with t = 1 and exact recent tokens, of one row and one key head, in lists."""

    def __init__(self, budget, recent, radius, uniforms):
        self.recent, self.radius, self.uniforms = recent, radius, uniforms  # uniforms of a position
        self.s = (budget - recent) // 2
        self.m = budget - recent - self.s
        self.newest, self.length = [], 0
        self.clusters = []  # [first key, drawn key, number of keys]
        self.mu, self.samples = 0.0, [None] * self.s

    def step(self, q, k, v):
        """(group, n, D), (n, D), (n, Dv) -> (group, n, Dv)."""
        while len(self.newest) > self.recent:
            self.leave()
        out = torch.zeros(len(q), len(k), 5)
        for h, t in [(h, t) for h in range(len(q)) for t in range(len(k))]:

            def e(key, query=q[h, t]):
                return torch.exp(query @ key / 3**0.5)

            tau = sum(n * e(key) for _, key, n in self.clusters)
            z = sum(
                self.mu / (self.s * value.square().sum()) * e(key) * value
                for key, value in filter(None, self.samples)
            )
            exact = [*self.newest, *zip(k[: t + 1], v[: t + 1], strict=True)]
            out[h, t] = (z + sum(e(key) * value for key, value in exact)) / (
                tau + sum(e(key) for key, _ in exact)
            )
        self.newest += list(zip(k, v, strict=True))
        self.length += len(k)
        return out

    def leave(self):
        key, value = self.newest.pop(0)
        position = self.length - len(self.newest) - 1
        first, *others = self.uniforms(position)
        distances = [float((key - centre).norm()) for centre, _, _ in self.clusters]
        if len(self.clusters) < self.m and min([*distances, float("inf")]) > self.radius:
            self.clusters.append([key, key, 1])
        else:
            cluster = self.clusters[distances.index(min(distances))]
            cluster[2] += 1
            if first < 1 / cluster[2]:
                cluster[1] = key
        norm = float(value.square().sum())
        for i, u in enumerate(others):
            if u < norm / (self.mu + norm):
                self.samples[i] = (key, value)
        self.mu += norm


@pytest.mark.parametrize(("budget", "recent", "radius"), [(7, 3, 0.0), (9, 1, 1.5), (4, 2, 0.5)])
def test_sampled_values_are_the_papers_algorithm(budget, recent, radius):
    torch.manual_seed(0)
    options = {"budget": budget, "recent": recent, "radius": radius}
    fed = Fed(3, **options)
    fed.cache = CACHE.build(Choice("subgen", values="sampled", **options), SHAPE, 3, 99)
    n = 1 + (budget - recent) // 2

    def by_hand():
        return [
            SampledByHand(
                **options,
                uniforms=lambda p, head=head: draw_uniforms(torch.tensor([p]), 0, 2, n)[0, head].tolist(),
            )
            for head in range(2)
        ]

    fed.rows = [by_hand() for _ in range(3)]
    for lengths in ([9, 2, 1], [1, 1, 1], [1, 1, 0], [4, 0, 2], *[[1, 1, 1]] * 5, [3, 11, 2]):
        fed.step([0, 1, 2], lengths)
    fed.step([2, 0], [1, 5])
    fed.cache.select([1, 2, 1])
    fed.rows = [copy.deepcopy(fed.rows[i]) for i in (1, 2, 1)]
    fed.step([0, 1, 2], [1, 1, 1])
    fed.cache.release(2)
    fed.rows[2] = by_hand()
    for _ in range(5):
        fed.step([0, 1, 2], [1, 1, 1])
    memory = fed.cache.memory_usage()
    assert memory.used_bytes <= memory.reserved_bytes == fed.cache.nbytes


def test_both_sums_of_the_samples_are_unbiased_and_the_means_are_not():
    """The same 30 tokens in 4,000 heads, each with draws of its own: on average normalizer and product are
    those of all tokens. Means underestimate the normalizer, as exp is convex.
    """
    torch.manual_seed(3)
    heads, n, query = 4000, 30, torch.tensor([1.0, -0.5, 0.7])
    keys, values = torch.randn(n, 3), 1 + torch.randn(n, 5)
    exact = torch.exp(keys @ query / 3**0.5)
    found = {}
    for kind in ("mean", "sampled"):
        cache = CACHE.build(
            Choice("subgen", budget=9, recent=1, values=kind), SHAPE._replace(n_kv_heads=heads), 1, 99
        )
        cache.prepare_step([0], torch.arange(n)[None])
        layer = cache.layers[0]
        layer.update(KV(keys.expand(1, heads, -1, -1), values.expand(1, heads, -1, -1)))
        cache.prepare_step([0], torch.tensor([[n]]))
        kv = layer.update(KV((-99 * query).expand(1, heads, 1, 3), torch.zeros(1, heads, 1, 5)))
        weights = (torch.exp(kv.k @ query / 3**0.5) * kv.log_count.exp()).where(kv.pos >= 0, 0.0)[0].double()
        found[kind] = weights.sum(-1), (weights[..., None] * kv.v[0]).sum(-2)
    normalizer, product = found["sampled"]
    for estimate, wanted in ((normalizer, exact.sum()), (product, exact @ values)):
        error = estimate.std(0) / heads**0.5
        assert ((estimate.mean(0) - wanted).abs() < 4 * error).all()
        assert (error < 0.02 * wanted.abs().max()).all() and (error > 0).all()
    assert (found["mean"][0] < 0.99 * exact.sum()).all()
