import pytest
import torch
from tests.cost.cost_helpers import make_config
from torch.utils._pytree import tree_leaves

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.cost.decoding import (
    bytes_by_kv_heads,
    cache_shape,
    count_source_bytes,
    estimate_decoding_memory,
    measure_cache,
    packed_model_bytes,
    token_flops,
)
from polyhead.cost.workload import BatchShape
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import build, preset_config
from polyhead.run.load import LOAD_DTYPES

WINDOW = {"name": "softmax", "window": 3}
MODELS = [
    {"position": "rope", "head_dim": 6, "v_head_dim": 4},
    {"attention": "linear"},
    {"feed_forward": "moe"},
    {"n_layers": 5, "layer_pattern": [{"attention": "linear"}, {}, {"block": "lstm"}]},
    {"layer_pattern": [{}, {"position": "alibi"}, {"attention": WINDOW}], "position": "none"},
]


@torch.inference_mode()
def read_tokens(model, choice, n_rows, length):
    cache = make_cache(CACHE.check(choice), model.cache_shape, n_rows, length)
    pos = torch.arange(length).expand(n_rows, -1)
    memory = (
        model.encode(torch.zeros(n_rows, 9, dtype=torch.int64)) if getattr(model, "encode", None) else None
    )
    cache.prepare_step(range(n_rows), pos)
    model.decode(torch.zeros_like(pos), pos, cache, memory)
    return cache, memory


@pytest.mark.parametrize("changes", MODELS, ids=str)
@pytest.mark.parametrize("name", CACHE.names())
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_estimate_equals_the_bytes_of_a_cache(kind, name, changes):
    config, choice = make_config(kind, changes), Choice(name, **({"rank": 2} if name == "low_rank" else {}))
    estimate, model = measure_cache(choice, cache_shape(config), 3, 40), build(config, 1).eval()
    if estimate.unsupported_reason:
        has_windows = "layer_pattern" in changes and name == "subgen"
        assert (name == "state") == bool(model.cache_shape.kv_layers) or has_windows
        return
    cache, memory = read_tokens(model, choice, 3, 40)
    assert estimate.nbytes == cache.nbytes
    if memory is not None:
        n_bytes = sum(x.nbytes for x in tree_leaves(memory) if x is not None)
        assert count_source_bytes(config, 9) * 3 == n_bytes


@pytest.mark.parametrize("rank", [3, 8, 99])
def test_rank_is_at_most_the_head_dim(rank):
    config, choice = make_config("decoder"), Choice("low_rank", rank=rank)
    cache, _ = read_tokens(build(config, 1).eval(), choice, 1, 40)
    assert measure_cache(choice, cache_shape(config), 1, 40).nbytes == cache.nbytes


def test_grouped_heads_and_bounded_caches_save():
    """All heads of 12 layers hold keys and values in fp32."""
    sizes = bytes_by_kv_heads(preset_config("gpt2", 50257), 12)
    assert sizes[12] == 12 * 2 * 768 * 4
    assert {n: sizes[12] / size for n, size in sizes.items()} == {12: 1, 6: 2, 4: 3, 3: 4, 2: 6, 1: 12}
    # a bounded cache bounds the operations
    config = make_config("decoder", {"max_len": 4096})
    full, bounded = token_flops(config, 4096), token_flops(config, 4096, cache=Choice("h2o", budget=64))
    # layers, 2 per product, keys and values, d_model, slots
    assert full - bounded == 2 * 2 * 2 * 16 * (4096 - 64)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_packed_bytes_equal_those_of_packed_models(kind, dtype):
    sizes = {"d_model": 64, "n_kv_heads": 4, "d_ff": 128, "vocab_size": 320, "position": "learned"}
    config = make_config(kind, sizes)
    model = pack_model(build(config, 1).to(LOAD_DTYPES[dtype]).eval(), linear_factory(dtype))
    parts = {x.data_ptr(): x for part in model.modules() for x in vars(part).values() if torch.is_tensor(x)}
    assert packed_model_bytes(config, dtype) == pytest.approx(sum(x.nbytes for x in parts.values()), rel=0.02)


def test_decoding_memory_grows_with_rows_beams_and_source():
    config = make_config("encoder-decoder", {"d_model": 64, "vocab_size": 320})
    weights = packed_model_bytes(config, "int8")

    def estimate(rows, beam_size, source, dtype="int8"):
        return estimate_decoding_memory(config, dtype, BatchShape(rows, 0, source), 10, beam_size) - weights

    shape = cache_shape(config)
    cache, source = measure_cache(None, shape, 3, 10).nbytes, 3 * count_source_bytes(config, 9)
    assert estimate(3, 1, 9) >= cache + source
    assert estimate(3, 4, 9) >= 5 * cache + source
    assert estimate(3, 1, 18) - estimate(3, 1, 9) >= source
