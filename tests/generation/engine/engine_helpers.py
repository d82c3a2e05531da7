"""Models, requests and searches for the tests of the engine."""

import itertools

import torch
from tests.cache.cache_helpers import check_invariants
from tests.generation.helpers import GREEDY, build_noisy

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Hypothesis
from polyhead.models import Ensemble
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

EOS, BOS, V, MAX_LEN = 2, 1, 23, 40
HYBRID_LAYERS = [{"attention": "linear"}, {}, {"block": "gru"}]
HYBRID_LAYERS += [{"attention": {"name": "softmax", "window": 5}}]
DESIGNS = {
    "rope": {"position": "rope", "norm": "rmsnorm", "norm_first": True, "n_kv_heads": 2},
    "learned": {"position": "learned", "norm_first": True},
    "alibi": {"position": "alibi"},
    "linear": {"attention": "linear"},
    "lstm": {"block": "lstm", "position": "none"},
    "hybrid": {"position": "rope", "n_layers": 4, "layer_pattern": HYBRID_LAYERS},
}
ENSEMBLES = {"rope+alibi": ("rope", "alibi"), "lstm+rope": ("lstm", "rope"), "hybrids": ("hybrid", "hybrid")}
WARM = Sampling(temperature=1.2, top_k=9, repetition_penalty=1.1, no_repeat_ngram_size=2)
PAGED_CACHE = Choice("paged", block_size=4)


def make(kind="decoder", design="rope", seed=3, **sizes):
    if design in ENSEMBLES:
        first, second = ENSEMBLES[design]
        other = make(kind, second, seed=5, d_model=24, n_heads=2, n_layers=2)
        return Ensemble([make(kind, first), other]).eval()
    defaults = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_len": MAX_LEN}
    sizes = defaults | DESIGNS[design] | sizes
    config = ModelConfig(kind=kind, vocab_size=V, tie_embeddings="none", **sizes)
    return build_noisy(config, seed, 0.2, 4, head_scale=3)


def sample(engine, prompt, limit, sampling=GREEDY, n=1, seed=0, eos_id=-1, source=None):
    state = SampledSequences(SamplingStrategy(sampling, eos_id), prompt, limit, n, seed)
    return engine.submit(prompt, state, source=source)


def search(engine, prompt, limit, beam_size, source=None, **options):
    strategy = BeamSearchStrategy(beam_size, EOS, **options)
    return engine.submit(prompt, BeamState(strategy, BeamRequest(limit)), source=source)


def outputs(request):
    return [hypothesis.tokens for hypothesis in request.result()]


def run_alone(model, submit, max_len=MAX_LEN, **options):
    return outputs(submit(Engine(model, max_len=max_len, **options)))


def step_until_idle(engine, steps=5000):
    for _ in range(steps):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def all_blocks_are_free(table):
    check_invariants(table)
    return table.n_available == table.n_blocks > 0


class SilentModel:
    """A model without weights, for tests of which requests run, and when."""

    training, vocab_size, source_size = False, 10**6, 10**6
    encode = decode_greedy = None
    cache_shape = CacheShape(1, 1, 1, 1, torch.float32, torch.device("cpu"))

    def decode_features(self, tokens, pos, cache, memory):
        assert tokens.shape == pos.shape and tokens.numel()
        return tokens

    def decode(self, tokens, pos, cache, memory):
        return self.head(self.decode_features(tokens, pos, cache, memory))

    def head(self, features):
        return features[..., None]


class SilentTranslator(SilentModel):
    def encode(self, source, pos):
        x = source[:, None, :, None].float()
        return [KV(x, x, None if pos is None else pos[:, None])]


class Fan:
    """The search that shares least: rows that differ in all tokens, all of them live to the end."""

    forced_tokens, error = (), ""

    def __init__(self, width, limit, n_first_rows):
        self.width, self.max_new_tokens, self.strategy, self.new_tokens = width, limit, self, []
        self.rows, self.parent_rows = [[] for _ in range(n_first_rows)], list(range(n_first_rows))
        self.tokens = itertools.count(1000)

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
        return [Hypothesis([], 0.0, 0.0, 0)]

    def abort(self, number):
        raise AssertionError("not requested")
