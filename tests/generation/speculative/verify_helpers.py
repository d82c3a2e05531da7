"""Shared by the tests of verify."""

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.sampling import RandomStreams, Sampling
from polyhead.generation.speculative.verify import speculative_generate
from polyhead.models import build

EOS, V = 2, 11

COLD, WARM = (
    Sampling(temperature=0.0),
    Sampling(temperature=1.3, top_k=7, top_p=0.97, min_p=0.01, repetition_penalty=1.2),
)


def make(seed, sure=2.0, **given):
    sizes = {
        "d_model": 16,
        "n_heads": 4,
        "n_layers": 2,
        "d_ff": 20,
        "max_len": 64,
        "position": "rope",
        "dropout": 0.0,
    }
    model = build(
        ModelConfig(**{"kind": "decoder", "vocab_size": V, "tie_embeddings": "none", **sizes, **given}),
        seed=seed,
    )
    torch.manual_seed(seed + 100)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
        model.head.weight.mul_(sure)  # far from ties
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return make(1)


def say_all(model, prompts, proposer, **options):
    """The new tokens of every sequence, and all that was yielded."""
    given = {"sampling": COLD, "eos_id": EOS, "max_new_tokens": 12, "max_len": 64} | options
    told = list(speculative_generate(model, prompts, proposer, **given))
    found = [[] for _ in range(given.get("n", 1) * len(prompts))]
    for token in told:
        found[token.row - given.get("row_offset", 0)].append(token.id)
    return found, told


@torch.no_grad()
def slow(model, prompt, limit, sampling=COLD, seed=0, number=0, max_len=64, eos_id=EOS):
    """Plain decoding: what is seen of the text is read anew for every token, without a cache."""
    y, since, chance = list(prompt), 0, RandomStreams(seed, 1, number)
    while len(y) < len(prompt) + limit and (len(y) == len(prompt) or y[-1] != eos_id):
        if len(y) - since > max_len:
            since = len(y) - max_len // 2
        allowed = sampling.apply(model(torch.tensor([y[since:]]))[:, -1], [y], (0,), [y[len(prompt) :]])
        y.append(int(allowed.argmax()) if sampling.temperature == 0 else chance.sample(allowed, [0])[0])
    return y[len(prompt) :]


class Counting:
    """A model that counts its steps."""

    training = False

    def __init__(self, model):
        self.model, self.cache_shape, self.decode_features, self.widths = (
            model,
            model.cache_shape,
            model.decode_features,
            [],
        )

    def decode(self, tokens, pos, cache, memory):
        self.widths.append(tokens.size(1))
        return self.model.decode(tokens, pos, cache, memory)


class Watching:
    """A proposer whose guesses are kept: for each row of the first step, the numbers of tokens guessed."""

    def __init__(self, proposer):
        self.proposer, self.guesses = proposer, []

    def start(self, prompts, context):
        self.inner = self.proposer.start(prompts, context)
        self.reorder = self.inner.reorder
        return self

    def propose(self, texts, streams, max_tokens):
        found = self.inner.propose(texts, streams, max_tokens)
        self.guesses += [(stream, list(guess.tokens)) for stream, guess in zip(streams, found, strict=True)]
        return found
