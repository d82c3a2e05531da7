"""Toy translators whose every probability is known, and plain searches over them."""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch

from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

EOS, BOS, V = 0, 4, 4  # three words and the end of the sentence; the begin is never an output


class Tape:
    """A translator that remembers its outputs only through the cache it is given, as keys in two layers."""

    training, vocab_size, source_size, decode_greedy = False, 1000, 1000, None

    def __init__(self):
        self.read = []  # source and prefix of each feature

    cache_shape = CacheShape(2, 1, 1, 1, torch.float32, torch.device("cpu"))

    def encode(self, source, source_pos=None):
        pos = torch.arange(source.size(1)).expand_as(source) if source_pos is None else source_pos
        k = source[:, None, :, None].float()
        return [KV(k, k, pos[:, None])] * 2

    def decode(self, tokens, pos, cache, memory):
        return self.head(self.decode_features(tokens, pos, cache, memory)[:, -1])[:, None]

    def decode_features(self, tokens, pos, cache, memory):
        """A number (N, T) for each token, by which ``head`` knows its source and prefix."""
        assert cache is not None
        prefixes = []
        k, v = tokens[:, None, :, None].float(), pos[:, None, :, None].float()
        for layer in cache.layers:
            kv = layer.update(KV(k, v, pos[:, None]))
            assert kv.pos is not None
            prefixes.append([])
            slots = zip(kv.pos[:, 0], kv.k[:, 0, :, 0], kv.v[:, 0, :, 0], pos.tolist(), strict=True)
            for slot_pos, keys, values, new in slots:
                order = slot_pos.argsort()[int((slot_pos < 0).sum()) :]
                assert values[order].tolist() == list(range(max(new) + 1))
                text = tuple(keys[order].long().tolist())
                prefixes[-1].append([text[: last + 1] for last in new])
        assert prefixes[0] == prefixes[1]
        beams = len(tokens) // len(memory[0].k)
        assert beams * len(memory[0].k) == len(tokens)
        sources = [
            tuple(ids[source_pos >= 0].long().tolist())
            for ids, source_pos in zip(memory[0].k[:, 0, :, 0], memory[0].pos[:, 0], strict=True)
        ]
        first = len(self.read)
        self.read += [(sources[i // beams], prefix) for i, row in enumerate(prefixes[0]) for prefix in row]
        return torch.arange(first, len(self.read)).view_as(tokens)

    def head(self, features):
        sources, prefixes = zip(*(self.read[i] for i in features.tolist()), strict=True)
        return self.logits_of([*sources], [*prefixes])

    def logits_of(self, sources, prefixes):
        """Logits (N, V) after full prefixes, begin included."""
        raise NotImplementedError


@functools.lru_cache(maxsize=2**18)
def draw_logits(seed, spread, eos, source, prefix):
    logits = np.random.default_rng([seed, len(source), *source, *prefix]).normal(0, spread, V)
    logits[EOS] += eos
    return logits.astype(np.float32)


class Table(Tape):
    def __init__(self, seed, spread=1.5, eos=0.0):
        super().__init__()
        self.seed, self.spread, self.eos = seed, spread, eos

    def logits(self, source, prefix):
        return draw_logits(self.seed, self.spread, self.eos, tuple(source), tuple(prefix))

    def logits_of(self, sources, prefixes):
        return torch.tensor(np.stack([self.logits(s, p[1:]) for s, p in zip(sources, prefixes, strict=True)]))

    def log_probs(self, source, prefix):
        logits = self.logits(source, prefix).astype(np.float64)
        return logits - math.log(np.exp(logits).sum())

    def log_prob(self, source, tokens):
        return sum(self.log_probs(source, tokens[:i])[token] for i, token in enumerate(tokens))


class Output(NamedTuple):
    tokens: tuple[int, ...]
    score: float
    log_prob: float


def exhaustive_search(model, source, limit, alpha, prefix=(), min_new=0):
    outputs = []
    for length in range(limit + 1):
        for y in itertools.product([w for w in range(V) if w != EOS], repeat=length):
            if y[: len(prefix)] != tuple(prefix)[:length] or length < len(prefix):
                continue
            if min_new > length < limit:
                continue
            log_prob = model.log_prob(source, y if length == limit else (*y, EOS))
            outputs.append(Output(y, log_prob / min(length + 1, limit) ** alpha, log_prob))
    return sorted(outputs, key=lambda output: -output.score)


def plain_beam_search(model, source, limit, alpha, beam, early, prefix=(), min_new=0):
    live, complete = [(0.0, ())], []
    for length in range(1, limit + 1):
        extensions = []
        for log_prob, y in live:
            log_probs = model.log_probs(source, y)
            allowed = [prefix[len(y)]] if len(y) < len(prefix) else range(int(len(y) < min_new), V)
            extensions += [(log_prob + log_probs[word], (*y, word)) for word in allowed]
        extensions.sort(key=lambda extension: -extension[0])
        live = []
        for rank, (log_prob, y) in enumerate(extensions[: 2 * beam]):
            if y[-1] == EOS or length == limit:
                if rank < beam:
                    words = y[:-1] if y[-1] == EOS else y
                    complete.append(Output(words, log_prob / length**alpha, log_prob))
            elif len(live) < beam:
                live.append((log_prob, y))
        complete = sorted(complete, key=lambda output: -output.score)[:beam]
        if not live:
            break
        if len(complete) == beam:
            reach = limit if early == "never" and alpha > 0 else length
            if early is True or live[0][0] / reach**alpha <= complete[-1].score:
                break
    return complete
