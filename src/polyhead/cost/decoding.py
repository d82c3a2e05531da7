"""Cost of decoding: operations per token and bytes of the cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.cost import flops
from polyhead.cost.fake_tensors import fake_mode, fake_model
from polyhead.cost.parameter_count import meta_model
from polyhead.cost.workload import BatchShape
from polyhead.kernels.fused_step import MAX_BUFFER_FLOATS
from polyhead.kernels.int_linear import GROUP_SIZE
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.embedding import Head
from polyhead.nn.kv import KV

_LARGE_LAYER = 1 << 23  # numbers in a layer above which only one of its heads is measured
# options that limit the slots that a query attends to
_WINDOW_OPTIONS = {"window": ("window", "sink"), "h2o": ("budget",), "subgen": ("budget",)}


class CacheCost(NamedTuple):
    """Bytes of a cache for a number of rows of a given length."""

    cache: Choice
    nbytes: int  # storage
    per_token: float  # bytes that each additional token of a row needs
    unsupported_reason: str = ""  # why the cache does not support the model; "" if it does


def token_flops(config: ModelConfig, context: int, source: int = 0, cache: Choice | None = None) -> int:
    """Operations to decode one more token of a row that then has ``context`` tokens.

    The source of an encoder-decoder is already encoded. A cache that keeps fewer tokens limits ``context``;
    operations of the cache itself (directions, clusters, unpacking) are not counted.
    """
    if cache is not None and cache.name in _WINDOW_OPTIONS:
        context = min(context, sum(CACHE.check(cache).options[name] for name in _WINDOW_OPTIONS[cache.name]))
    return sum(work.total for work in flops.count_token(config, context, source))


def cache_shape(config: ModelConfig) -> CacheShape:
    """The shape of the cache for a model config, computed without memory for the model."""
    model = meta_model(config)
    assert isinstance(model, CausalLM | Seq2Seq), "an encoder decodes nothing"
    return model.cache_shape._replace(device=torch.device("cpu"))


def measure_cache(choice: Choice | None, shape: CacheShape, rows: int, length: int) -> CacheCost:
    """Measure the bytes of a cache for ``rows`` rows of ``length`` tokens each.

    Small caches (one row and two rows) are created, filled with zeros and extrapolated. States of layers
    without keys and values are included.
    """
    checked = CACHE.check(choice or Choice("static" if shape.kv_layers else "state"))
    half = max(1, length // 2)
    try:
        make_cache(checked, shape, 0, length)  # a later layer may be unsupported where the first is supported
        half_bytes, row_bytes, two_rows_bytes = (
            _cache_bytes(checked, shape, *size) for size in ((1, half), (1, length), (2, length))
        )
    except UserError as error:
        return CacheCost(checked, 0, 0.0, str(error))
    return CacheCost(
        checked,
        row_bytes + (rows - 1) * (two_rows_bytes - row_bytes),
        (row_bytes - half_bytes) / max(1, length - half),
    )


def _cache_bytes(choice: Choice, shape: CacheShape, rows: int, length: int) -> int:
    """Bytes of a cache: states, measured on the meta device, plus keys and values."""
    keyed = shape.kv_layers
    states = shape._replace(device=torch.device("meta")).select_layers(
        [i for i in range(shape.n_layers) if i not in keyed]
    )
    state_bytes = make_cache(None, states, rows, length).nbytes if states.n_layers else 0
    return state_bytes + (_kv_bytes(choice, shape.select_layers(keyed), rows, length) if keyed else 0)


def _kv_bytes(choice: Choice, shape: CacheShape, rows: int, length: int) -> int:
    """Bytes of keys and values, extrapolated from one layer.

    All layers are measured if the cache needs them together, and only one head of a large layer.
    """
    heads = 1
    if rows * length * shape.n_kv_heads * (shape.head_dim + shape.v_dim) > _LARGE_LAYER:
        heads, shape = shape.n_kv_heads, shape._replace(n_kv_heads=1)
    try:
        common, of_layer = _layer_bytes(choice, shape.select_layers([0]), rows, length)
        return common + shape.n_layers * heads * of_layer
    except UserError:
        common, of_layers = _layer_bytes(choice, shape, rows, length)
        return common + heads * of_layers


@torch.inference_mode()
def _layer_bytes(choice: Choice, shape: CacheShape, rows: int, length: int) -> tuple[int, int]:
    """(bytes that the layers share, bytes of all layers together)."""
    cache: Cache = make_cache(choice, shape, rows, length)
    pos, size = torch.arange(length).expand(rows, -1), (rows, shape.n_kv_heads, length)
    cache.prepare_step(range(rows), pos)
    k, v = (torch.zeros(*size, width, dtype=shape.dtype) for width in (shape.head_dim, shape.v_dim))
    for layer in cache.layers:
        layer.update(KV(k, v, pos[:, None]))
    of_layers = sum(layer.nbytes for layer in cache.layers)
    return cache.nbytes - of_layers, of_layers


def count_source_bytes(config: ModelConfig, source: int) -> int:
    """Bytes per row in fp32 that the decoder layers keep of ``source`` tokens, without the cache.

    These are keys and values; with linear attention to the source, sums of constant size; in a recurrent
    layer, its initial state.
    """
    with fake_mode(), torch.inference_mode():
        model, features = fake_model(config), torch.zeros(1, source, config.source_width)
        assert isinstance(model, Seq2Seq)
        memory = [layer.project_kv(features, None) for layer in model.decoder.blocks]
        return sum(x.numel() for x in tree_leaves(memory) if isinstance(x, Tensor)) * 4


def estimate_decoding_memory(
    config: ModelConfig, dtype: str, batch: BatchShape, new_tokens: int, beam_size: int = 1,
    cache: Choice | None = None,
) -> int:  # fmt: skip
    """The most bytes that decoding a batch of prompts or sources holds at once: weights, caches, buffers.

    Beams copy a layer of the cache when they move; the storage of their common row is kept.
    """
    shape, rows, source = cache_shape(config), batch.rows, batch.source
    kept = measure_cache(cache, shape, rows * beam_size, batch.length + new_tokens).nbytes
    if beam_size > 1:
        kept += kept // beam_size + 3 * kept // (2 * shape.n_layers)
    kept += rows * (count_source_bytes(config, source) if source else 0)
    features = 8 * config.d_model + (config.d_ff or 4 * config.d_model)  # of a token in the kernels
    read, step = (min(4 * n * features, 4 * MAX_BUFFER_FLOATS) for n in (batch.tokens, rows * beam_size))
    return packed_model_bytes(config, dtype) + kept // (2 if dtype == "bf16" else 1) + max(read - kept, step)


def packed_model_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of a model's weights, packed in fp32, bf16, int8 or int4 (``kernels.pack_model``)."""
    width, model = 2 if dtype == "bf16" else 4, meta_model(config)
    of_linear = {"int8": 1.0, "int4": (GROUP_SIZE / 2 + 1) / GROUP_SIZE}
    plain = {p for part in model.modules() if type(part) is not nn.Linear for p in part.parameters(False)}
    nbytes = width * sum(x.numel() for x in (*plain, *model.buffers()))
    for part in model.modules():
        if type(part) is nn.Linear or isinstance(part, Head):
            packed = "int8" if isinstance(part, Head) and dtype == "int4" else dtype  # as the head is packed
            n, k = part.weight.shape
            scales = 8 * n if packed in of_linear else 0
            nbytes += int(n * k * of_linear.get(packed, width)) + scales + width * n * (part.bias is not None)
    return nbytes


def bytes_by_kv_heads(config: ModelConfig, n_layers: int) -> dict[int, int]:
    """{n_kv_heads: bytes of keys and values per token in ``n_layers`` layers, in fp32}.

    n_kv_heads takes every divisor of n_heads, from n_heads down to 1.
    """
    shape = config.attention_shape(causal=True)
    head_bytes = n_layers * (shape.head_dim + shape.v_head_dim) * 4
    return {n: n * head_bytes for n in range(shape.n_heads, 0, -1) if shape.n_heads % n == 0}
