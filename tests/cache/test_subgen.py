import pytest
import torch
from tests.cache.cache_helpers import SHAPE as TWO_LAYERS
from tests.cache.cache_helpers import Harness

from polyhead.cache.subgen import draw_uniforms
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV, attend

SHAPE = TWO_LAYERS._replace(n_layers=1)


class MeanReference:
    """One row and one key head: clusters, as lists of (key, value), and recent tokens."""

    def __init__(self, budget, recent, radius):
        self.recent, self.radius, self.max_clusters = recent, radius, budget - recent
        self.clusters, self.newest, self.length = [], [], 0

    def step(self, q, k, v):
        """Every token of a cluster counts as much as the means of the cluster."""
        while len(self.newest) > self.recent:
            self.absorb()
        slots = [(len(c), *(sum(x) / len(c) for x in zip(*c, strict=True))) for c in self.clusters]
        slots += [(1, key, value) for key, value in self.newest]
        out = torch.zeros(len(q), len(k), 5)
        for h in range(len(q)):
            for t in range(len(k)):
                tokens = slots + [(1, k[s], v[s]) for s in range(t + 1)]
                weights = [n * torch.exp(q[h, t] @ key / 3**0.5) for n, key, _ in tokens]
                total = sum(w * value for w, (_, _, value) in zip(weights, tokens, strict=True))
                out[h, t] = total / sum(weights)
        self.newest += list(zip(k, v, strict=True))
        self.length += len(k)
        return out

    def absorb(self):
        key, value = self.newest.pop(0)
        centres = [sum(k for k, _ in c) / len(c) for c in self.clusters]
        distances = [float((key - centre).norm()) for centre in centres]
        if len(self.clusters) < self.max_clusters and min([*distances, float("inf")]) > self.radius:
            self.clusters.append([(key, value)])
        else:
            self.clusters[distances.index(min(distances))].append((key, value))


class SampledReference:
    """Algorithm 1 of the paper with t = 1 and exact recent tokens, of one row and one key head."""

    def __init__(self, budget, recent, radius, uniforms):
        self.recent, self.radius, self.uniforms = recent, radius, uniforms  # uniforms of a position
        self.s = (budget - recent) // 2
        self.m = budget - recent - self.s
        self.newest, self.length = [], 0
        self.clusters = []  # [first key, sampled key, number of keys]
        self.mu, self.samples = 0.0, [None] * self.s

    def step(self, q, k, v):
        while len(self.newest) > self.recent:
            self.absorb()
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
            normalizer = tau + sum(e(key) for key, _ in exact)
            out[h, t] = (z + sum(e(key) * value for key, value in exact)) / normalizer
        self.newest += list(zip(k, v, strict=True))
        self.length += len(k)
        return out

    def absorb(self):
        key, value = self.newest.pop(0)
        first, *uniforms = self.uniforms(self.length - len(self.newest) - 1)
        distances = [float((key - centre).norm()) for centre, _, _ in self.clusters]
        if len(self.clusters) < self.m and min([*distances, float("inf")]) > self.radius:
            self.clusters.append([key, key, 1])
        else:
            cluster = self.clusters[distances.index(min(distances))]
            cluster[2] += 1
            if first < 1 / cluster[2]:
                cluster[1] = key
        norm = float(value.square().sum())
        for i, u in enumerate(uniforms):
            if u < norm / (self.mu + norm):
                self.samples[i] = (key, value)
        self.mu += norm


def make_harness(n_rows, is_sampled=False, **options):
    if not is_sampled:
        return Harness(Choice("subgen", **options), lambda _: MeanReference(**options), n_rows)
    n = 1 + (options["budget"] - options["recent"]) // 2

    def make_reference(head):
        def uniforms(position):
            return draw_uniforms(torch.tensor([position]), 0, 2, n)[0, head].tolist()

        return SampledReference(**options, uniforms=uniforms)

    return Harness(Choice("subgen", values="sampled", **options), make_reference, n_rows)


MEANS = [(False, 6, 3, 0.0), (False, 5, 1, 1.5), (False, 9, 4, 1.0), (False, 3, 2, 0.5)]
SAMPLES = [(True, 7, 3, 0.0), (True, 9, 1, 1.5), (True, 4, 2, 0.5)]


@pytest.mark.parametrize(("is_sampled", "budget", "recent", "radius"), [*MEANS, *SAMPLES])
def test_attention_equals_the_algorithm_in_lists(is_sampled, budget, recent, radius):
    torch.manual_seed(0)
    harness = make_harness(3, is_sampled, budget=budget, recent=recent, radius=radius)

    def step(rows, lengths):
        harness.step(rows, lengths)
        if not is_sampled:
            counts = harness.cache.layers[0].count.sum(-1)
            assert counts.tolist() == [[float(head.length) for head in heads] for heads in harness.rows]

    for lengths in ([9, 2, 1], [1, 1, 1], [1, 1, 0], [4, 0, 2], [1, 1, 0], *[[1, 1, 1]] * 5, [3, 11, 2]):
        step([0, 1, 2], lengths)
    for rows, lengths in (([2, 0], [1, 5]), ([1], [1]), ([2, 0], [1, 1])):
        step(rows, lengths)
    harness.select([1, 2, 1])
    step([0, 1, 2], [1, 1, 1])
    if not is_sampled:
        harness.fork(0, 1)
    harness.release(2)
    for _ in range(6):
        step([0, 1, 2], [1, 1, 1])
    memory = harness.cache.memory_usage()
    assert memory.used_bytes <= memory.reserved_bytes == harness.cache.nbytes


def test_equal_tokens_share_a_slot_of_fixed_memory():
    torch.manual_seed(1)
    cache = CACHE.build(Choice("subgen", budget=8, recent=1), SHAPE, 1, 200)
    keys, values, ids = torch.randn(3, 2, 3), torch.randn(3, 2, 5), torch.randint(3, (100,))
    k, v = keys[ids].transpose(0, 1)[None], values[ids].transpose(0, 1)[None]
    for t in range(100):
        cache.prepare_step([0], torch.tensor([[t]]))
        kv = cache.layers[0].update(KV(k[:, :, t : t + 1], v[:, :, t : t + 1]))
    q = torch.randn(1, 4, 1, 3)
    assert int((cache.layers[0].pos[0, 0] >= 0).sum()) == 3 + 2
    torch.testing.assert_close(attend(q, kv, kv.mask), attend(q, KV(k, v)), rtol=1e-4, atol=1e-5)
    harness = make_harness(2, budget=6, recent=2, radius=0.0)
    slot = (3 + 5) * 4 + 8 + 4
    assert harness.cache.memory_usage()[:2] == (2 * 2 * 7 * slot, 0)
    harness.step([0, 1], [20, 3])
    assert harness.cache.memory_usage()[:2] == (2 * 2 * 7 * slot, 2 * (6 + 3) * slot)
