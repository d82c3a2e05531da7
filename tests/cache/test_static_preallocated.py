import pytest
import torch
from tests.cache.cache_helpers import build_static, feed, feed_tokens, stamps_of
from torch._dynamo.testing import CompileCounter

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.generation.greedy import greedy_decode

PREALLOCATE = Choice("static", preallocate=True)


@pytest.fixture(autouse=True)
def reset_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build_decoder(**changes):
    sizes = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 4, "max_len": 32, "kind": "decoder"}
    return ph.build(ph.ModelConfig.model_validate(sizes | changes), seed=1).eval()


def buffer_pointers(cache):
    layout = cache.layers[0].step
    assert layout.padding is not None
    tensors = [layout.pos, layout.mask, layout.padding, *layout.write_slots, cache.pos]
    tensors += [x for layer in cache.layers for x in (layer.k, layer.v)]
    return [x.data_ptr() for x in tensors]


@pytest.mark.parametrize("position", ["rope", pytest.param("alibi", marks=pytest.mark.slow)])
@torch.inference_mode()
def test_step_compiles_to_one_graph_over_fixed_buffers(position):
    """The result is that of the default; rows end at different lengths, and one becomes padding."""
    parts = {"position": position, "n_kv_heads": 2, "feed_forward": "swiglu", "norm": "rmsnorm"}
    decoder, counter = build_decoder(**parts), CompileCounter()
    step = torch.compile(decoder.decode, backend=counter, fullgraph=True, dynamic=False)
    cache, plain = (make_cache(c, decoder.cache_shape, 3, 20) for c in (PREALLOCATE, None))
    prompt, pos = torch.randint(0, 50, (3, 5)), torch.arange(5).repeat(3, 1)
    pos[1, 3:] = -1
    for one in (cache, plain):
        one.prepare_step(range(3), pos)
        decoder.decode(prompt, pos, one)
    pointers, ends = [], torch.tensor([[5], [3], [5]])
    for t in range(4):
        tokens, pos = torch.randint(0, 50, (3, 1)), ends + t
        if t == 2:
            pos[2] = -1
        for one in (cache, plain):
            one.prepare_step(range(3), pos)
        expected = decoder.decode(tokens, pos, plain)
        is_real = pos[:, 0] >= 0
        torch.testing.assert_close(step(tokens, pos, cache)[is_real], expected[is_real], rtol=1e-4, atol=1e-5)
        pointers.append(buffer_pointers(cache))
        ends[2] -= int(t == 2)
    assert pointers == [pointers[0]] * 4 and counter.frame_count == 1


def test_reordered_rows_stay_in_their_buffers():
    caches = cache, _ = build_static(3, preallocate=True), build_static(3)
    assert cache.layers[0].k.size(2) == cache.max_len + 1, "all slots are allocated at the start"
    for one in caches:
        feed(one, range(3), torch.arange(4).repeat(3, 1), torch.arange(12.0).view(3, 4))
        feed_tokens(one, range(3), 4, [[20.0], [21.0], [22.0]])
    pointers = buffer_pointers(cache)
    for rows in ([2, 0, 0], [1, 1, 0]):
        for one in caches:
            one.select(rows)
        for t in (5, 6):
            stamps = torch.randn(3, 1)
            actual, expected = (feed(one, range(3), torch.full((3, 1), t), stamps) for one in caches)
            assert [stamps_of(actual, row) == stamps_of(expected, row) for row in range(3)] == [True] * 3
        assert buffer_pointers(cache) == pointers
        for one in caches:
            one.lengths[:3] = [5] * 3
    decoder = build_decoder(position="rope")
    for prompt in ([1], [1, 2, 3, 4]):
        expected = greedy_decode(decoder, prompt, max_new_tokens=9)
        assert greedy_decode(decoder, prompt, max_new_tokens=9, cache=PREALLOCATE) == expected
