"""Levers on attention (scale, mask, positions, order of words) and on weights (heads, layers, KV heads)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from polyhead.core.errors import UserError
from polyhead.cost.decoding import bytes_by_kv_heads
from polyhead.explain.levers.interface import Field, Lever, LeverOutput, Setting, run_changed
from polyhead.explain.levers.lever_input import LeverInput, copy_modules, list_stacks, reuse_layers
from polyhead.models import CausalLM, Model
from polyhead.models.pool_kv_heads import pool_kv_heads, pooled_config
from polyhead.nn.attention.projections import ShardedByHeads
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.block.base import ShowsWeights
from polyhead.nn.position.base import Position
from polyhead.nn.stack import StackLayers

_MAX_SCALE = 1000.0
_MAX_SEED = 2**31 - 1
_NO_HEADS = "this model has no attention heads"


def _require(list_parts: Callable[[Any], Iterator[Any]], obstacle: str) -> Callable[[LeverInput], str]:
    """The ``find_obstacle`` of a lever on parts: the obstacle if a model has none of them."""
    return lambda lever_input: "" if any(True for _ in list_parts(lever_input.model)) else obstacle


def list_scales(model: nn.Module) -> list[float]:
    """The factor on q k^T of every softmax attention."""
    return [
        part.head_dim**-0.5 if part.scale is None else part.scale
        for part in model.modules()
        if isinstance(part, Attention)
    ]


def _compute_scale(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """Set the factor on q k^T of every softmax attention, of self- and cross-attention alike."""
    model, scales = copy_modules(lever_input.model), list_scales(lever_input.model)
    for part in model.modules():
        if isinstance(part, Attention):
            part.scale = setting["scale"]
    return LeverOutput(lever_input.compute_logits(model), detail={"plain_scale": scales[0]})


SCALE_LEVER = Lever(
    "scale",
    lambda lever_input: (
        "attention of this model has no scale"
        if (scales := list_scales(lever_input.model)) and all(scale == 1 for scale in scales)
        else ""
        if scales
        else "this model has no softmax attention"
    ),
    lambda _: [Field("scale", "number", 1.0, 0, _MAX_SCALE)],
    lambda _: [{"scale": 1.0}],
    _compute_scale,
)


def list_causal_attentions(model: nn.Module) -> Iterator[Any]:
    """Every attention with a causal mask."""
    for part in model.modules():
        if isinstance(part, ShardedByHeads) and part.causal:
            yield part


def remove_causal_masks(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Let every token attend to the tokens after it too."""
    for attention in list_causal_attentions(model):
        attention.causal = False


CAUSAL_MASK_LEVER = Lever(
    "causal_mask",
    _require(list_causal_attentions, "attention of this model has no causal mask"),
    lambda _: [],
    lambda _: [{}],
    run_changed(remove_causal_masks),
)


def list_positioned(model: nn.Module) -> Iterator[Any]:
    """Every module with a position scheme that acts: embeddings and attentions."""
    for part in model.modules():
        position = getattr(part, "position", None)
        if isinstance(position, Position) and position.kind != "nothing":
            yield part


def remove_positions(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Replace every position scheme by the scheme "none"."""
    for part in [*list_positioned(model)]:
        part.position = Position(model.config.attention_shape(causal=False))


POSITIONS_LEVER = Lever(
    "positions",
    _require(list_positioned, "this model has no position scheme"),
    lambda _: [],
    lambda _: [{}],
    run_changed(remove_positions),
)


def shuffle_words(lever_input: LeverInput, seed: int) -> list[int]:
    """The index of the token that comes to each place of the input when its words are shuffled.

    Words keep the order of their own tokens; a language model keeps its last token in place. The order is
    never that of the text.
    """
    tokens, words = lever_input.source or lever_input.tokens, _list_movable_words(lever_input)
    shuffled = list(words)
    rng = random.Random(seed)
    while shuffled == words:
        rng.shuffle(shuffled)
    order, places = list(range(len(tokens))), sorted(i for word in words for i in word)
    for place, token in zip(places, (i for word in shuffled for i in word), strict=True):
        order[place] = token
    return order


def _list_movable_words(lever_input: LeverInput) -> list[list[int]]:
    """The words that may be moved: of a language model those before the last token."""
    if not isinstance(lever_input.model, CausalLM):
        return lever_input.words
    last = len(lever_input.tokens) - 1
    words = [[i for i in word if i < last] for word in lever_input.words]
    return [word for word in words if word]


def _compute_shuffle(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The outputs of shuffled words, in the order of the text, with or without positions.

    Each is compared with the same model on the text in order. Of a language model only the last row has the
    same tokens before it.
    """
    order = shuffle_words(lever_input, setting["seed"])
    has_source = lever_input.source is not None
    tokens = lever_input.source if lever_input.source is not None else lever_input.tokens
    shuffled_tokens = [tokens[i] for i in order]
    place_of = {token: place for place, token in enumerate(order)}
    rows = lever_input.rows if has_source else [None if i is None else place_of[i] for i in lever_input.rows]
    shuffled = lever_input.replace(rows=rows, **{"source" if has_source else "tokens": shuffled_tokens})
    model = copy_modules(lever_input.model)
    if setting["positions"] == "none":
        remove_positions(model, lever_input, {})
    is_comparable = None
    if isinstance(model, CausalLM):
        is_comparable = [i == len(tokens) - 1 for i in lever_input.rows]
    return LeverOutput(
        shuffled.compute_logits(model),
        lever_input.compute_logits(model),
        {"positions": "none", "shuffled": False} if setting["positions"] == "none" else None,
        is_comparable,
        {"order": order, "side": 0},
    )


SHUFFLE_LEVER = Lever(
    "shuffle",
    lambda lever_input: (
        "" if len(_list_movable_words(lever_input)) > 1 else "the text has fewer than two words to move"
    ),
    lambda _: [
        Field("positions", "choice", "kept", values=("kept", "none")),
        Field("seed", "integer", 0, 0, _MAX_SEED),
    ],
    lambda lever_input: [
        {"positions": "kept"},
        *([{"positions": "none"}] if any(True for _ in list_positioned(lever_input.model)) else []),
    ],
    _compute_shuffle,
)


_ATTENTION_NAMES = {"self": "attn", "cross": "cross"}
_MAX_CASES, _MAX_CASE_TOKENS = 256, 2**14  # heads, or layers, that a file has; their tokens together
_SHORT_TOP = 2  # tokens listed of each row where there are many cases


class HeadAddress(NamedTuple):
    """One head of a model; layers and heads count from 0."""

    stack: str
    attention: str  # "self" or "cross"
    layer: int
    head: int


def list_heads(model: Model) -> Iterator[HeadAddress]:
    """Every head of every attention that projects its joined heads."""
    for stack, module in list_stacks(model).items():
        for i, layer in enumerate(module.layers):
            for name, attribute in _ATTENTION_NAMES.items():
                attention: Any = getattr(layer, attribute, None)
                if isinstance(attention, ShardedByHeads):
                    n_heads = attention.o_proj.in_features // attention.v_head_dim
                    yield from (HeadAddress(stack, name, i, head) for head in range(n_heads))


def _max_cases(lever_input: LeverInput) -> int:
    """How many cases a file has: fewer of a long text."""
    return max(1, min(_MAX_CASES, _MAX_CASE_TOKENS // len(lever_input.tokens)))


def knock_out_head(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Set the output of one head to 0 before the output projection."""
    address = HeadAddress(**setting)
    layers = list_stacks(model)[address.stack].layers
    # a layer whose weights are shared by all is a module in several places
    layers[address.layer] = layer = copy_modules(layers[address.layer])
    attention: Any = getattr(layer, _ATTENTION_NAMES[address.attention])
    start, width = address.head * attention.v_head_dim, attention.v_head_dim

    def zero_head(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        joined = args[0].clone()
        joined[..., start : start + width] = 0
        return (joined,)

    attention.o_proj.register_forward_pre_hook(zero_head)
    reuse_layers(model, lever_input.plain_states, address.stack, address.layer)


def _list_head_fields(lever_input: LeverInput) -> list[Field]:
    heads = [*list_heads(lever_input.model)]
    first = heads[0]
    stacks, attentions = dict.fromkeys(h.stack for h in heads), dict.fromkeys(h.attention for h in heads)
    return [
        Field("stack", "choice", first.stack, values=tuple(stacks)),
        Field("attention", "choice", first.attention, values=tuple(attentions)),
        Field("layer", "integer", first.layer, 0, max(h.layer for h in heads)),
        Field("head", "integer", 0, 0, max(h.head for h in heads)),
    ]


def _compute_head(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    address = HeadAddress(**setting)
    if address not in set(list_heads(lever_input.model)):
        raise UserError(
            f"there is no head {address.head} in {address.attention}-attention of layer {address.layer} of "
            f"the {address.stack}; layers and heads count from 0"
        )
    return run_changed(knock_out_head)(lever_input, setting)


HEAD_LEVER = Lever(
    "head",
    _require(list_heads, _NO_HEADS),
    _list_head_fields,
    lambda lever_input: [head._asdict() for head in list_heads(lever_input.model)][: _max_cases(lever_input)],
    _compute_head,
    _SHORT_TOP,
)


def skip_layer(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Remove one layer of a stack; its input is that of the next layer."""
    stack = list_stacks(model)[setting["stack"]]
    stack.layers = StackLayers(layer for i, layer in enumerate(stack.layers) if i != setting["layer"])
    reuse_layers(model, lever_input.plain_states, setting["stack"], setting["layer"])


def _list_layer_fields(lever_input: LeverInput) -> list[Field]:
    cases = _list_layer_cases(lever_input)
    stacks = tuple(dict.fromkeys(case["stack"] for case in cases))
    return [
        Field("stack", "choice", stacks[0], values=stacks),
        Field("layer", "integer", 0, 0, max(case["layer"] for case in cases)),
    ]


def _list_layer_cases(lever_input: LeverInput) -> list[Setting]:
    stacks = list_stacks(lever_input.model).items()
    cases = [
        {"stack": name, "layer": i}
        for name, stack in stacks
        if len(stack.layers) > 1
        for i in range(len(stack.layers))
    ]
    return cases[: _max_cases(lever_input)]


def _compute_layer(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    n_layers = len(list_stacks(lever_input.model)[setting["stack"]].layers)
    if setting["layer"] >= n_layers:
        raise UserError(
            f"the {setting['stack']} has {n_layers} layers, which count from 0; there is no layer "
            f"{setting['layer']}"
        )
    return run_changed(skip_layer)(lever_input, setting)


LAYER_LEVER = Lever(
    "layer",
    lambda lever_input: "" if _list_layer_cases(lever_input) else "every stack of this model has one layer",
    _list_layer_fields,
    _list_layer_cases,
    _compute_layer,
    _SHORT_TOP,
)


def _list_kv_heads(lever_input: LeverInput) -> list[int]:
    """The numbers of key/value heads that the model's own can be pooled to, the largest first."""
    n = lever_input.model.config.kv_heads
    return [k for k in range(n - 1, 0, -1) if n % k == 0]


def _find_kv_obstacle(lever_input: LeverInput) -> str:
    if not any(True for _ in list_heads(lever_input.model)):
        return _NO_HEADS
    if not _list_kv_heads(lever_input):
        return "this model has one key/value head"
    try:
        pooled_config(lever_input.model.config, 1)
    except UserError as error:
        return str(error)
    return ""


def _compute_kv_heads(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The model with fewer key/value heads, each the mean of a group of the old ones."""
    n, config = setting["n_kv_heads"], lever_input.model.config
    pooled = pool_kv_heads(lever_input.model, n)
    for path, part in pooled.named_modules():
        if isinstance(part, ShowsWeights):
            part.weights_hooks = cast(Any, lever_input.model.get_submodule(path)).weights_hooks
    stacks = list_stacks(lever_input.model)
    sizes = bytes_by_kv_heads(config, len([*stacks.values()][-1].layers))
    detail = {"bytes_per_token": {"before": sizes[config.kv_heads], "after": sizes[n]}}
    return LeverOutput(lever_input.compute_logits(pooled), detail=detail)


KV_HEADS_LEVER = Lever(
    "kv_heads",
    _find_kv_obstacle,
    lambda lever_input: [Field("n_kv_heads", "integer", 1, 1, lever_input.model.config.kv_heads - 1)],
    lambda lever_input: [{"n_kv_heads": n} for n in _list_kv_heads(lever_input)],
    _compute_kv_heads,
)
