"""Tests of generation/decoding/sampler.py."""

import numpy as np
from tests.generation.penalties_helpers import RULES, make, plainly
from tests.generation.penalties_helpers import model as model

from polyhead import Choice
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.generate import generate

V, NEVER = 13, -1

PROMPTS = [[5, 6, 7, 5], [9], [4, 4, 8, 10, 3, 4, 4]]


def stream(seed, number):
    return np.random.Generator(np.random.PCG64([seed, number]))


def test_rows_with_settings_of_their_own_go_on_together(model):
    """Greedy and drawn, several of a prompt, through one engine whose room is short:
    some must be read anew.
    """
    engine = Engine(model, max_len=64, cache=Choice("paged", block_size=4, max_blocks=40), prefill_chunk=3)
    asked = []
    for number, rule in enumerate([*RULES.values(), {}] * 2):
        temperature, prompt = (0.0, 0.8)[number % 2], PROMPTS[number % 3]
        drawing, n = SamplingStrategy(Sampling(temperature=temperature, **rule), NEVER), 1 + number % 3
        request = engine.submit(prompt, SampledSequences(drawing, prompt, 16, n, seed=number))
        asked.append((request, prompt, rule, temperature, n, number))
    for request, prompt, rule, temperature, n, seed in asked:
        found = [hypothesis.tokens for hypothesis in request.result()]
        chances = [stream(seed, row) for row in range(n)]
        assert found == [plainly(model, prompt, rule, 16, temperature, chance) for chance in chances]
    assert engine.preemptions > 0


def test_a_text_that_outgrows_the_model_counts_what_it_no_longer_sees(model):
    """Of a long text the model sees the end alone, and every token of it was said."""
    rule = {"frequency_penalty": 2.0}
    sampling = Sampling(temperature=0.0, **rule)
    tokens = [
        token.id
        for token in generate(make(max_len=16), [[5]], sampling=sampling, eos_id=NEVER, max_new_tokens=60,
            max_len=16)
    ]  # fmt: skip
    counts = [tokens.count(token) for token in range(V)]
    assert max(counts) - min(counts) <= 12 and min(counts) > 0
