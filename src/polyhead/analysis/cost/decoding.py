"""What decoding costs: operations for a token, bytes of the cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from polyhead.analysis.cost import flops
from polyhead.analysis.cost.weightless import weightless
from polyhead.cache.base import Cache, CacheShape
from polyhead.cache.make import make_cache
from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.models import CausalLM, Seq2Seq
from polyhead.models.build import model_class
from polyhead.nn.kv import KV
from polyhead.registry import CACHE, Choice

LARGE = 1 << 23  # numbers of a layer, from which on one of its heads is weighed
# options that bound what a query sees
BOUNDS = {"window": ("window", "sink"), "h2o": ("budget",), "subgen": ("budget",)}


class Held(NamedTuple):
    """What a cache holds of so many rows of so many tokens."""

    cache: Choice
    nbytes: int  # of storage
    per_token: float  # what the last tokens of a row added, each
    refused: str = ""  # why it does not serve the model, if it does not


def token_flops(config: ModelConfig, context: int, source: int = 0, cache: Choice | None = None) -> int:
    """Operations for one more token of a row that then has ``context`` of them.

    Of an encoder-decoder the source has been read already. A cache that keeps fewer tokens is looked at as far as it goes;
    what it computes itself (directions, clusters, unpacking) does not count.
    """
    if cache is not None and cache.name in BOUNDS:
        context = min(context, sum(CACHE.check(cache).options[name] for name in BOUNDS[cache.name]))
    return sum(work.total for work in flops.token(config, context, source))


def cache_shape(config: ModelConfig) -> CacheShape:
    """What a cache must hold for the model of that config, without memory for the model."""
    with weightless():
        model = model_class(config)(config)
        assert isinstance(model, CausalLM | Seq2Seq), "an encoder decodes nothing"
        return model.cache_shape._replace(device=torch.device("cpu"))


def held(choice: Choice | None, shape: CacheShape, rows: int, length: int) -> Held:
    """What a cache holds of ``rows`` rows of ``length`` tokens each: made of one row and of two, fed with zeros, and asked.

    The states of layers that keep no keys and values are among it.
    """
    named = CACHE.check(choice or Choice("static" if shape.keyed else "state"))
    half = max(1, length // 2)
    try:
        make_cache(named, shape, 0, length)  # some layer may be refused where the first one is not
        less, one, two = (_weighed(named, shape, *size) for size in ((1, half), (1, length), (2, length)))
    except UserError as error:
        return Held(named, 0, 0.0, str(error))
    return Held(named, one + (rows - 1) * (two - one), (one - less) / max(1, length - half))


def _weighed(choice: Choice, shape: CacheShape, rows: int, length: int) -> int:
    """Bytes of some rows: of states without their numbers, and of keys and values."""
    keyed = shape.keyed
    states = shape._replace(device=torch.device("meta")).of(
        [i for i in range(shape.n_layers) if i not in keyed]
    )
    beside = make_cache(None, states, rows, length).nbytes if states.n_layers else 0
    return beside + (_weighed_keys(choice, shape.of(keyed), rows, length) if keyed else 0)


def _weighed_keys(choice: Choice, shape: CacheShape, rows: int, length: int) -> int:
    """One layer is made and stands for the others, but where a part wants them all; of heads that are large, one."""
    heads = 1
    if rows * length * shape.n_kv_heads * (shape.head_dim + shape.v_dim) > LARGE:
        heads, shape = shape.n_kv_heads, shape._replace(n_kv_heads=1)
    try:
        common, of_layer = _bytes(choice, shape.of([0]), rows, length)
        return common + shape.n_layers * heads * of_layer
    except UserError:
        common, of_layers = _bytes(choice, shape, rows, length)
        return common + heads * of_layers


@torch.inference_mode()
def _bytes(choice: Choice, shape: CacheShape, rows: int, length: int) -> tuple[int, int]:
    """What the layers of a cache share, and what they hold together."""
    cache: Cache = make_cache(choice, shape, rows, length)
    pos, size = torch.arange(length).expand(rows, -1), (rows, shape.n_kv_heads, length)
    cache.begin(range(rows), pos)
    k, v = (torch.zeros(*size, width, dtype=shape.dtype) for width in (shape.head_dim, shape.v_dim))
    for layer in cache.layers:
        layer.update(KV(k, v, pos[:, None]))
    of_layers = sum(layer.nbytes for layer in cache.layers)
    return cache.nbytes - of_layers, of_layers


def source_bytes(config: ModelConfig, source: int) -> int:
    """What the layers of a decoder keep of a source of that many tokens in fp32, for each row and besides its cache.

    Keys and values; with linear attention to the source sums of a constant size, in a recurrent layer where it begins.
    """
    with weightless(), torch.inference_mode():
        decoder, read = model_class(config)(config).decoder, torch.zeros(1, source, config.d_model)
        memory = [layer.remember(read, None) for layer in decoder.layers]  # type: ignore[union-attr]
        return sum(x.numel() for x in tree_leaves(memory) if isinstance(x, Tensor)) * 4


def by_heads(config: ModelConfig, depth: int) -> dict[int, int]:
    """Bytes of keys and values a token in so many layers in fp32, by n_kv_heads: of all heads, a group of every size that
    divides them, one alone."""
    shape = config.shape(causal=True)
    each = depth * (shape.head_dim + shape.v_head_dim) * 4
    return {n: n * each for n in range(shape.n_heads, 0, -1) if shape.n_heads % n == 0}
