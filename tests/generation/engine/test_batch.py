"""Tests of generation/engine/batch.py."""

from tests.generation.engine.test_engine import BOS, GREEDY, MAX_LEN, make

from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.engine.engine import Engine


def test_the_sources_of_those_who_left_take_no_room():
    model, rule = make("encoder-decoder"), SamplingStrategy(GREEDY, -1)
    engine = Engine(model, max_len=MAX_LEN)
    long = engine.submit([BOS], SampledSequences(rule, [BOS], 2), source=[5] * 30)
    short = engine.submit([BOS], SampledSequences(rule, [BOS], 9), source=[5] * 3)
    long.result()
    engine.submit([BOS], SampledSequences(rule, [BOS], 2), source=[6] * 4)
    engine.step()
    assert [memory.k.size(2) for memory in engine.batches[0].memory] == [4, 4]
    alone = Engine(model, max_len=MAX_LEN).submit([BOS], SampledSequences(rule, [BOS], 9), source=[5] * 3)
    assert [short.result()[0].tokens] == [h.tokens for h in alone.result()]
