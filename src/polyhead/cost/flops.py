"""Floating-point operations of a forward pass in closed form, part by part.

A product of matrices (m, k) (k, n) costs 2 m k n: a multiplication and an addition for each term. Matrix
products and convolutions count, element-wise operations do not (Narayanan et al., 2021, appendix; Kaplan et
al., 2020, sec. 2.1). The backward pass has two products of the same size for each product of the forward
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from polyhead.config.model import PER_TOKEN, AttentionShape, ModelConfig
from polyhead.core.choice import Choice
from polyhead.cost.workload import (
    AttentionExtent,
    BatchShape,
    OpCount,
    UnknownFormulaError,
    lookup_formula,
    merge_op_counts,
)
from polyhead.nn.position.disentangled import near_index_range


def update_flops_factor(has_adapters: bool) -> int:
    """Cost of an optimizer step in forward passes: 3 (the backward pass costs two), or 2 with adapters.

    The frozen weights of a model with adapters need no gradient. The cost of the adapters themselves, rank /
    width of the rest, is ignored.
    """
    return 2 if has_adapters else 3


def count_forward(config: ModelConfig, batch_shape: BatchShape) -> list[OpCount]:
    """Operations of one forward pass over a batch, padding included.

    Raises ``UnknownFormulaError`` for a part without a formula.
    """
    lookup_formula(_KNOWN_NORMS, config.norm)
    works = [work for layers in count_stacks(config, batch_shape) for layer in layers for work in layer]
    works = [*_count_embeddings(config, batch_shape), *works, *_count_head(config, batch_shape)]
    if config.generator_layers and batch_shape.label_count is not None:
        works += [
            work._replace(name=f"generator {work.name}")
            for work in count_forward(config.generator_config, batch_shape)
        ]
    return merge_op_counts(work for work in works if work.flops_each)


def count_recomputed(config: ModelConfig, batch_shape: BatchShape) -> int:
    """Operations of the blocks in one forward pass, which ``train.recompute`` adds to the backward pass.

    Without embeddings and head. An upper bound: torch stops where no further tensor is needed, mostly before
    the last product of a block.
    """
    total = sum(
        work.total for layers in count_stacks(config, batch_shape) for layer in layers for work in layer
    )
    if config.generator_layers and batch_shape.label_count is not None:
        total += count_recomputed(config.generator_config, batch_shape)
    return total


def count_token(config: ModelConfig, context: int, source: int = 0) -> list[OpCount]:
    """Operations to decode one more token of a row that then has ``context`` tokens.

    The source is already encoded.
    """
    lookup_formula(_KNOWN_NORMS, config.norm)
    crossing = config.kind == "encoder-decoder"
    self_extent = AttentionExtent(1, 1, context, 1)
    cross_extent = AttentionExtent(1, 1, source, 0) if crossing else None
    depth = config.decoder_layers if crossing else config.n_layers
    works = [work for i in range(depth) for work in count_layer(config, i, self_extent, cross_extent, "")]
    works = [*_count_embeddings(config, BatchShape(1, 1)), *works, *_count_head(config, BatchShape(1, 1))]
    return merge_op_counts(work for work in works if work.flops_each)


def count_stacks(config: ModelConfig, batch_shape: BatchShape) -> list[list[list[OpCount]]]:
    """Operation counts of every layer of every stack: encoder and decoder, or the only one."""
    rows, length, source, _ = batch_shape
    if config.kind != "encoder-decoder":
        side = AttentionExtent(rows, length, length, length)
        return [[count_layer(config, i, side, None, "") for i in range(config.n_layers)]]
    source_extent = AttentionExtent(rows, source, source, source)
    target_extent = AttentionExtent(rows, length, length, length)
    across, encoder = AttentionExtent(rows, length, source, source), config.encoder_spec
    return [
        [count_layer(encoder, i, source_extent, None, "encoder ") for i in range(config.n_layers)],
        [count_layer(config, i, target_extent, across, "decoder ") for i in range(config.decoder_layers)],
    ]


def count_layer(
    config: ModelConfig,
    i: int,
    self_extent: AttentionExtent,
    cross_extent: AttentionExtent | None,
    prefix: str,
) -> list[OpCount]:
    """Operation counts of layer i: its block, and cross-attention if the layer has it."""
    causal = config.kind == "decoder" or cross_extent is not None
    block = config.layer_config(i).block_choice(cross_extent is not None)
    works = lookup_formula(_BLOCK_COUNTERS, block)(
        config, i, block, self_extent, cross_extent, config.attention_shape(causal)
    )
    return [work._replace(name=f"{prefix}{work.name}") for work in works]


def count_attention(
    choice: Choice, position: Choice | None, shape: AttentionShape, extent: AttentionExtent
) -> list[OpCount]:
    """Operations of the projections, and of scores and weighted sums."""
    rows, queries, _, fresh = extent
    wide, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    # tied keys and values are computed once; tied queries are not keys
    tied = choice.options.get("tie", "none") in ("kv", "qkv")
    values, C = 0 if tied else shape.n_kv_heads * shape.v_head_dim, shape.d_model
    queried = queries * (wide + shape.n_heads * shape.v_head_dim)
    projected = 2 * rows * (C * queried + (shape.kv_width or C) * fresh * (keys + values))
    projected *= choice.options.get("projections") != "none"
    gathered = lookup_formula(_SCORE_COUNTERS, choice)(choice, position, shape, extent)
    return [OpCount("projections", 1, projected, "4BSHA + 4BSHG"), gathered]


def _count_softmax(
    choice: Choice, position: Choice | None, shape: AttentionShape, extent: AttentionExtent
) -> OpCount:
    """Operations of every pair of query and slot: q k^T and the weighted sum of values.

    The distance vectors of shaw and disentangled positions are included.
    """
    if choice.options.get("sim", "exp") not in ("exp", "square", "elu", "relu"):
        raise UnknownFormulaError(f"similarity {choice.options['sim']!r}")
    rows, queries, slots, _ = extent
    per_query = 2 * rows * shape.n_heads * queries
    pair = shape.head_dim + shape.v_head_dim
    total = per_query * slots * pair
    if position is not None and position.name == "shaw":
        vectors = 2 * position.options["clip"] + 1
        total += (
            per_query * vectors * (shape.head_dim + (shape.v_head_dim if position.options["values"] else 0))
        )
    if position is not None and position.name == "disentangled":
        span = position.options["span"]
        terms = position.options["terms"]
        width = shape.n_heads * shape.head_dim
        vectors = len(near_index_range(max(queries, slots) - 1, span, position.options["max_distance"]))
        total += 2 * vectors * shape.d_model * (width + shape.n_kv_heads * shape.head_dim)
        total += 2 * rows * vectors * width * (queries * (terms != "p2c") + slots * (terms != "c2p"))
    window, sink = choice.options.get("window"), choice.options.get("sink", 0)
    hidden = queries * slots - count_visible_pairs(
        queries, slots, shape.causal, window if position is not None else None, sink
    )
    return OpCount("scores and values", 1, total, "4BS²A", 2 * rows * shape.n_heads * hidden * pair)


@cache
def count_visible_pairs(
    queries: int, slots: int, causal: bool, window: int | None = None, sink: int = 0
) -> int:
    """Number of (query, slot) pairs that the mask of rows without padding leaves visible.

    The queries of a causal row are its newest tokens.
    """
    if not causal and window is None:
        return queries * slots
    back = slots if window is None else window
    visible = 0
    for i in range(slots - queries if causal else 0, slots if causal else queries):
        first = max(0, i + 1 - back)
        last = i if causal else min(slots - 1, i + back - 1)
        visible += last + 1 - first + min(sink, first)
        if not causal:  # the attention sink of an encoder may be ahead of the query
            visible += max(0, min(sink, slots) - (last + 1))
    return visible


def _count_linear(
    choice: Choice, position: Choice | None, shape: AttentionShape, extent: AttentionExtent
) -> OpCount:
    """Operations of the sums of phi(k) v^T and their products with phi(q).

    A causal row also computes the pairs within each chunk (see nn/attention/linear.py).
    """
    name, features = choice.options["feature_map"], shape.head_dim  # P, of a feature map per head
    if name not in ("elu", "relu", "square"):
        raise UnknownFormulaError(f"feature map {name!r}")
    features = features * (features + 1) // 2 if name == "square" else features
    rotary = position is not None and position.name == "rope"
    widths = (shape.v_head_dim, 1) if rotary else (shape.v_head_dim + 1,)
    rows, queries, _, fresh = extent
    H, K = shape.n_heads, shape.n_kv_heads
    total = 0
    for width in widths:
        if not shape.causal or queries == 1:
            total += 2 * rows * features * width * (K * fresh + H * queries)
            continue
        chunk = min(choice.options["chunk"], queries)
        chunks = -(-queries // chunk)
        total += 2 * rows * chunks * chunk * (features * width * (K + H) + H * chunk * (features + width))
    return OpCount(
        "features and sums", 1, total, "2BSP(D + 1)(n_heads + n_kv_heads) + 2BSc n_heads(P + D + 1)"
    )


def count_feed_forward(config: ModelConfig, extent: AttentionExtent) -> OpCount:
    """Operations of two matrices, or three with a gate.

    With experts, those of the top_k experts and of the router scores.
    """
    choice, scores = config.feed_forward, 0
    if choice.name == "moe":
        scores = choice.options["n_experts"]
        matrices = choice.options["top_k"] * lookup_formula(_MLP_MATRICES, Choice(choice.options["expert"]))
    else:
        matrices = lookup_formula(_MLP_MATRICES, choice)
    assert config.d_ff is not None
    flops = 2 * extent.rows * extent.queries * config.d_model * (matrices * config.d_ff + scores)
    return OpCount(
        "feed-forward", 1, flops, f"{2 * matrices}BSHF" + (f" + {2 * scores}BSH" if scores else "")
    )


def _count_transformer(
    config: ModelConfig,
    i: int,
    block: Choice,
    self_extent: AttentionExtent,
    cross_extent: AttentionExtent | None,
    shape: AttentionShape,
) -> list[OpCount]:
    crossing = [] if cross_extent is None else _count_cross(config.layer_config(i), cross_extent)
    choice = config.layer_config(i).attention
    if cross_extent is not None and config.decoder_attention:
        choice = config.decoder_attention
    position = config.layer_override(i).position or config.position
    lookup_formula(_KNOWN_POSITIONS, position)
    own = count_attention(choice, position, shape, self_extent)
    return [*own, *crossing, count_feed_forward(config, self_extent)]


def _count_cross(config: ModelConfig, cross_extent: AttentionExtent) -> list[OpCount]:
    """Operations of cross-attention.

    Keys and values of the source are projected once and have no position.
    """
    shape = config.attention_shape(causal=False)._replace(kv_width=config.source_width)
    works = count_attention(config.cross_attention or config.attention, None, shape, cross_extent)
    names = {"4BSHA + 4BSHG": "4BSHA + 4BRHG", "4BS²A": "4BSRA"}
    return [
        work._replace(name=f"cross {work.name}", formula=names.get(work.formula, work.formula))
        for work in works
    ]


def _count_conv(
    config: ModelConfig,
    i: int,
    block: Choice,
    self_extent: AttentionExtent,
    cross_extent: AttentionExtent | None,
    shape: AttentionShape,
) -> list[OpCount]:
    factor = block.options["kernel"] * (4 if block.name == "gated_conv" else 2)
    flops = factor * self_extent.rows * self_extent.queries * config.d_model**2
    return [
        OpCount("convolution", 1, flops, f"{factor}BSH²"),
        *([] if cross_extent is None else _count_cross(config.layer_config(i), cross_extent)),
    ]


def _recurrent_counter(n_gates: int) -> Callable[..., list[OpCount]]:
    def count_recurrent(
        config: ModelConfig,
        i: int,
        block: Choice,
        self_extent: AttentionExtent,
        cross_extent: AttentionExtent | None,
        shape: AttentionShape,
    ) -> list[OpCount]:
        C, units = config.d_model, block.options["units"] or config.d_model
        readers = 2 if block.options["bidirectional"] and not shape.causal else 1
        width = units // readers
        tokens = self_extent.rows * self_extent.queries
        total = readers * 2 * n_gates * tokens * width * (C + width)
        total += 2 * tokens * units * C if units != C else 0  # o_proj
        if cross_extent is not None and cross_extent.new_slots:
            total += 2 * self_extent.rows * 2 * config.source_width * units  # start_proj
        counts = [OpCount("recurrence", 1, total, f"{2 * n_gates}BSU(H + U)")]
        return counts + (
            _count_cross(config.layer_config(i), cross_extent)
            if cross_extent is not None and block.options["attention"]
            else []
        )

    return count_recurrent


def _count_embeddings(config: ModelConfig, batch_shape: BatchShape) -> list[OpCount]:
    """Operations of the projections of embeddings (``d_embedding``) and of the output of the encoder."""
    E = config.d_embedding or 0
    rows, length, source, _ = batch_shape
    works = [OpCount("embeddings", 1, 2 * rows * length * E * config.d_model, "2BSEH")]
    if config.encoder is not None and config.encoder.projection:
        flops = 2 * rows * source * config.encoder_spec.d_model * config.d_model
        works.append(OpCount("encoder projection", 1, flops, "2BRHH'"))
    return works


def _count_head(config: ModelConfig, batch_shape: BatchShape) -> list[OpCount]:
    """Operations after the layers."""
    C, E, V = config.d_model, config.embedding_width, config.vocab_size
    e = "H" if config.d_embedding is None else "E"
    if config.kind == "encoder" and (config.labels or not config.lm_head):
        if config.generator_layers:
            flops = 2 * batch_shape.rows * batch_shape.length * (C * C + C)
            return [OpCount("replaced or not", 1, flops, "2BSH² + 2BSH")]
        if not config.labels:
            return []
        classes = len(config.labels)
        if config.problem_type in PER_TOKEN:
            return [OpCount("tags", 1, batch_shape.tokens * 2 * C * classes, f"2BSH x {classes}")]
        pooling = config.pooling or Choice("first", activation="tanh")
        if pooling.name not in ("first", "mean", "max", "last"):
            raise UnknownFormulaError(f"pooling {pooling.name!r}")
        mapped = pooling.options.get("activation") != "none"
        per_token = pooling.options.get("map_first", False)
        pooled = batch_shape.tokens if per_token else batch_shape.rows
        pooler = OpCount("pooler", 1, 2 * pooled * C * C, f"2B{'S' if per_token else ''}H²")
        return [pooler] * mapped + [
            OpCount("classes", 1, 2 * batch_shape.rows * C * classes, f"2BH x {classes}")
        ]
    label_formula = "2BS{}" if batch_shape.label_count is None else "2{} a label"
    head = OpCount("head", 1, 2 * batch_shape.labels * E * V, label_formula.format(f"{e}V"))
    if not config.has_head_transform and (config.kind == "encoder" or config.d_embedding is None):
        return [head]
    square = label_formula.format("H²" if config.d_embedding is None else "HE")
    return [OpCount("transform", 1, 2 * batch_shape.labels * C * E, square), head]


_BLOCK_COUNTERS = {
    "transformer": _count_transformer,
    "parallel": _count_transformer,
    "conv": _count_conv,
    "gated_conv": _count_conv,
    "rnn": _recurrent_counter(1),
    "lstm": _recurrent_counter(4),
    "gru": _recurrent_counter(3),
}
_SCORE_COUNTERS = {
    "softmax": _count_softmax,
    "kernel": lambda choice, position, *sizes: _count_softmax(choice, position and Choice("none"), *sizes),
    "linear": _count_linear,
}
_KNOWN_POSITIONS = dict.fromkeys(
    ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw", "disentangled")
)
_KNOWN_NORMS = dict.fromkeys(("layernorm", "rmsnorm", "batchnorm", "none"))
_PLAIN_MLPS = ("relu", "relu2", "leaky_relu", "prelu", "gelu", "silu", "tanh", "sigmoid", "conv1x1")
GATED_MLPS = ("glu", "reglu", "geglu", "swiglu")
_MLP_MATRICES = dict.fromkeys(_PLAIN_MLPS, 2) | dict.fromkeys(GATED_MLPS, 3)
