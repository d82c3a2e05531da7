"""Shared by the tests of engine_memory."""

import itertools

import torch

from polyhead.generation.engine.interface import Hypothesis
from polyhead.nn.cache import CacheShape


class Silent:
    """A model that says nothing: what is under test is who may run, and when."""

    training, vocab_size = False, 10**6
    cache_shape = CacheShape(1, 1, 1, 1, torch.float32, torch.device("cpu"))

    def decode_features(self, tokens, pos, cache, memory):
        assert tokens.shape == pos.shape and tokens.numel()
        return tokens

    def decode(self, tokens, pos, cache, memory):
        return self.head(self.decode_features(tokens, pos, cache, memory))

    def head(self, features):
        return features[..., None]


class Fan:
    """The search that shares least: rows that differ in their first token and in all others, all there to
    the end.
    """

    forced_tokens, error = (), ""

    def __init__(self, width, most, begin):
        self.width, self.max_new_tokens, self.strategy, self.new_tokens = width, most, self, []
        self.rows, self.parent_rows, self.tokens = (
            [[] for _ in range(begin)],
            list(range(begin)),
            itertools.count(1000),
        )

    def advance(self, states, logits, shortlist_head=None):
        for fan in states:
            fan.step()

    def step(self):
        if len(self.rows[0]) + 1 == self.max_new_tokens:
            self.parent_rows, self.rows, self.max_new_tokens = [], [], 0
        else:
            self.parent_rows = [i * len(self.rows) // self.width for i in range(self.width)]
            self.rows = [[*self.rows[i], next(self.tokens)] for i in self.parent_rows]

    def best_hypotheses(self):
        return [Hypothesis([], 0.0, 0.0)]

    def abort(self, number):
        raise AssertionError("not asked for")


def until_idle(engine, steps=2000):
    for _ in range(steps):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")
