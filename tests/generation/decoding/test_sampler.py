import numpy as np
from tests.generation.penalties_helpers import NO_EOS, PENALTIES, PROMPTS, V, decode_penalised, make
from tests.generation.penalties_helpers import model as model

from polyhead import Choice
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.generate import generate


def test_rows_with_different_settings_share_an_engine(model):
    engine = Engine(model, max_len=64, cache=Choice("paged", block_size=4, max_blocks=40), prefill_chunk=3)
    requests = []
    for seed, penalties in enumerate([*PENALTIES.values(), {}] * 2):
        temperature, prompt, n = (0.0, 0.8)[seed % 2], PROMPTS[seed % 3], 1 + seed % 3
        strategy = SamplingStrategy(Sampling(temperature=temperature, **penalties), NO_EOS)
        request = engine.submit(prompt, SampledSequences(strategy, prompt, 16, n, seed=seed))
        rngs = [np.random.Generator(np.random.PCG64([seed, row])) for row in range(n)]
        expected = [decode_penalised(model, prompt, penalties, 16, temperature, rng) for rng in rngs]
        requests.append((request, expected))
    for request, expected in requests:
        assert [hypothesis.tokens for hypothesis in request.result()] == expected
    assert engine.preemptions > 0
    sampling = Sampling(temperature=0.0, frequency_penalty=2.0)
    options = {"sampling": sampling, "eos_id": NO_EOS, "max_new_tokens": 60, "max_len": 16}
    tokens = [token.id for token in generate(make(max_len=16), [[5]], **options)]
    counts = [tokens.count(token) for token in range(V)]
    assert max(counts) - min(counts) <= 12 and min(counts) > 0
