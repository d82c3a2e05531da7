"""The plain loop against the engine, and against whole rows without a cache."""

from __future__ import annotations

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.generation.greedy import greedy_decode
from polyhead.models import build

SIZES = {"kind": "decoder", "vocab_size": 17, "d_model": 16, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
PROMPTS = [[3], [5, 1, 16], [2, 2, 2, 9, 4, 11]]
DESIGNS = {
    "rope": {"position": "rope"},
    "alibi": {"position": "alibi", "norm_first": True},
    "recurrent": {"block": "lstm", "position": "none"},
    "linear": {"attention": "linear", "position": "learned"},
}


def by_engine(model, prompt, n, eos_id):
    tokens = generate(model, [prompt], sampling=Sampling(temperature=0.0), eos_id=eos_id, max_new_tokens=n)
    return [token.id for token in tokens if token.id != eos_id]


CASES = [(name, None) for name in DESIGNS] + [
    (name, cache)
    for name in ("rope", "alibi")  # the others keep a state, no keys and values
    for cache in (Choice("growing"), Choice("paged", block_size=2, max_blocks=20))
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
@pytest.mark.parametrize(("design", "cache"), CASES)
def test_the_plain_loop_and_the_engine_decode_the_same(design, cache, prompt):
    model = build(ModelConfig(**SIZES, **DESIGNS[design]), seed=3).eval()
    for eos_id in (0, 5, 11, 16):
        found = greedy_decode(model, prompt, max_new_tokens=9, eos_id=eos_id, cache=cache)
        assert found == by_engine(model, prompt, 9, eos_id)


@pytest.mark.parametrize("design", DESIGNS)
def test_each_token_is_the_argmax_over_the_whole_text(design):
    model = build(ModelConfig(**SIZES, **DESIGNS[design]), seed=4).eval()
    found = greedy_decode(model, PROMPTS[1], max_new_tokens=8)
    text = [*PROMPTS[1], *found]
    with torch.no_grad():
        likeliest = model(torch.tensor([text])).argmax(-1)[0].tolist()
    assert found == likeliest[len(PROMPTS[1]) - 1 : -1]
    assert len(found) == 8


def test_the_end_is_not_in_the_output_and_no_token_may_be_wanted():
    model = build(ModelConfig(**SIZES), seed=5).eval()
    whole = greedy_decode(model, [3, 4], max_new_tokens=6)
    cut = greedy_decode(model, [3, 4], max_new_tokens=6, eos_id=whole[3])
    assert cut == whole[: whole.index(whole[3])]
    assert greedy_decode(model, [3, 4], max_new_tokens=0) == []
