"""Models and proposers for the tests of speculative decoding."""

import pytest
from tests.generation.helpers import GREEDY, build_noisy, ids_by_row

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.speculative.verify import speculative_generate

EOS, V = 2, 11
WARM = Sampling(temperature=1.3, top_k=7, top_p=0.97, min_p=0.01, repetition_penalty=1.2)


def make(seed, head_scale=2.0, **options):
    sizes = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_len": 64, "dropout": 0.0}
    parts = {"kind": "decoder", "vocab_size": V, "tie_embeddings": "none", "position": "rope"}
    return build_noisy(ModelConfig(**(parts | sizes | options)), seed, 0.2, seed + 100, head_scale)


@pytest.fixture(scope="module")
def model():
    return make(1)


def speculate(model, prompts, proposer, **options):
    options = {"sampling": GREEDY, "eos_id": EOS, "max_new_tokens": 12, "max_len": 64} | options
    events = list(speculative_generate(model, prompts, proposer, **options))
    return ids_by_row(events, options.get("n", 1) * len(prompts), options.get("row_offset", 0)), events


class Counting:
    training = False

    def __init__(self, model):
        self.model, self.widths = model, []
        self.cache_shape, self.decode_features = model.cache_shape, model.decode_features

    def decode(self, tokens, pos, cache, memory):
        self.widths.append(tokens.size(1))
        return self.model.decode(tokens, pos, cache, memory)


class Watching:
    def __init__(self, proposer):
        self.proposer, self.guesses = proposer, []

    def start(self, prompts, context):
        self.inner = self.proposer.start(prompts, context)
        self.reorder = self.inner.reorder
        return self

    def propose(self, texts, streams, max_tokens):
        drafts = self.inner.propose(texts, streams, max_tokens)
        self.guesses += [(stream, list(draft.tokens)) for stream, draft in zip(streams, drafts, strict=True)]
        return drafts
