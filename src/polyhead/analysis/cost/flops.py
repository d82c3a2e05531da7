"""Floating-point operations of a forward pass in closed form, part by part.

A product of matrices (m, k) (k, n) costs 2 m k n: a multiplication and an addition for each term. Products and
convolutions count, what is done element by element does not (Narayanan et al., 2021, appendix; Kaplan et al., 2020,
sec. 2.1). The backward pass has two products of the same size for each product of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable

from polyhead.analysis.cost.work import Load, Reach, Unknown, Work, known, merged
from polyhead.config import ModelConfig, Shape
from polyhead.nn.position.disentangled import near
from polyhead.registry import Choice


def times_forward(adapted: bool) -> int:
    """How many times a forward pass an update costs: the backward pass is two of them, with adapters one.

    Their frozen weights need no gradient; what the adapters themselves cost, rank / width of the rest, is left out.
    """
    return 2 if adapted else 3


def forward(config: ModelConfig, load: Load) -> list[Work]:
    """The operations of one forward pass over a batch, without padding left out; ``Unknown`` where no formula is known."""
    known(NORMS, config.norm)
    works = [work for layers in stacks(config, load) for layer in layers for work in layer]
    works = [*_begins(config, load), *works, *_ends(config, load)]
    if config.generator and load.asked is not None:
        works += [work._replace(name=f"generator {work.name}") for work in forward(config.of_generator, load)]
    return merged(work for work in works if work.each)


def token(config: ModelConfig, context: int, source: int = 0) -> list[Work]:
    """The operations of decoding one more token of a row that then has ``context``, the source read already."""
    known(NORMS, config.norm)
    crossing = config.kind == "encoder-decoder"
    own, across = Reach(1, 1, context, 1), Reach(1, 1, source, 0) if crossing else None
    depth = config.decoder_layers if crossing else config.n_layers
    works = [work for i in range(depth) for work in layer(config, i, own, across, "")]
    works = [*_begins(config, Load(1, 1)), *works, *_ends(config, Load(1, 1))]
    return merged(work for work in works if work.each)


def _over(rows: int, queries: int, slots: int) -> Reach:
    """Attention that makes all that it looks at."""
    return Reach(rows, queries, slots, slots)


def stacks(config: ModelConfig, load: Load) -> list[list[list[Work]]]:
    """The works of every layer of every stack: the encoder and the decoder, or the one there is."""
    if config.kind != "encoder-decoder":
        side = _over(load.rows, load.length, load.length)
        return [[layer(config, i, side, None, "") for i in range(config.n_layers)]]
    there, here = _over(load.rows, load.source, load.source), _over(load.rows, load.length, load.length)
    across = _over(load.rows, load.length, load.source)
    return [
        [layer(config, i, there, None, "encoder ") for i in range(config.n_layers)],
        [layer(config, i, here, across, "decoder ") for i in range(config.decoder_layers)],
    ]


def layer(config: ModelConfig, i: int, own: Reach, across: Reach | None, side: str) -> list[Work]:
    """The works of layer i: of its block, and of attention to the source where there is one."""
    causal = config.kind == "decoder" or across is not None
    block = config.at(i).block_of(across is not None)
    works = known(BLOCKS, block)(config, i, block, own, across, config.shape(causal))
    return [work._replace(name=f"{side}{work.name}") for work in works]


def attention(choice: Choice, position: Choice | None, shape: Shape, reach: Reach) -> list[Work]:
    """Projections, and what queries gather of the slots."""
    rows, queries, _, fresh = reach
    wide, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    # tied keys and values are computed once; tied queries are not keys
    tied = choice.options.get("tie", "none") in ("kv", "qkv")
    values, C = 0 if tied else shape.n_kv_heads * shape.v_head_dim, shape.d_model
    projected = 2 * rows * C * (queries * (wide + shape.n_heads * shape.v_head_dim) + fresh * (keys + values))
    gathered = known(GATHER, choice)(choice, position, shape, reach)
    return [Work("projections", 1, projected, "4BSHA + 4BSHG"), gathered]


def _softmax(choice: Choice, position: Choice | None, shape: Shape, reach: Reach) -> Work:
    """Every pair of a query and a slot: q k^T and the sum of values, and the vectors of distances of shaw or disentangled."""
    rows, queries, slots, _ = reach
    per_query = 2 * rows * shape.n_heads * queries
    pair = shape.head_dim + shape.v_head_dim
    total = per_query * slots * pair
    if position is not None and position.name == "shaw":
        vectors = 2 * position.options["clip"] + 1
        total += (
            per_query * vectors * (shape.head_dim + (shape.v_head_dim if position.options["values"] else 0))
        )
    if position is not None and position.name == "disentangled":
        span, terms, width = (
            position.options["span"],
            position.options["terms"],
            shape.n_heads * shape.head_dim,
        )
        vectors = len(near(max(queries, slots) - 1, span, position.options["max_distance"]))
        total += 2 * vectors * shape.d_model * (width + shape.n_kv_heads * shape.head_dim)
        total += 2 * rows * vectors * width * (queries * (terms != "p2c") + slots * (terms != "c2p"))
    window, sink = choice.options.get("window"), choice.options.get("sink", 0)
    hidden = queries * slots - pairs(
        queries, slots, shape.causal, window if position is not None else None, sink
    )
    return Work("scores and values", 1, total, "4BS²A", 2 * rows * shape.n_heads * hidden * pair)


def pairs(queries: int, slots: int, causal: bool, window: int | None = None, sink: int = 0) -> int:
    """Pairs of a query and a slot that the mask of whole rows shows; the queries of a causal row are its newest tokens."""
    if not causal and window is None:
        return queries * slots
    back = slots if window is None else window
    seen = 0
    for i in range(slots - queries if causal else 0, slots if causal else queries):
        first = max(0, i + 1 - back)
        last = i if causal else min(slots - 1, i + back - 1)
        seen += last + 1 - first + min(sink, first)
        if not causal:  # an encoder's sink may lie ahead
            seen += max(0, min(sink, slots) - (last + 1))
    return seen


def _linear(choice: Choice, position: Choice | None, shape: Shape, reach: Reach) -> Work:
    """Sums of phi(k) v^T, read by phi(q); in a causal row also the pairs within each chunk (see nn/attention/linear.py)."""
    features = feature_count(choice, shape.head_dim)
    turned = position is not None and position.name == "rope"
    widths = (shape.v_head_dim, 1) if turned else (shape.v_head_dim + 1,)
    rows, queries, _, fresh = reach
    H, K = shape.n_heads, shape.n_kv_heads
    total = 0
    for width in widths:
        if not shape.causal or queries == 1:
            total += 2 * rows * features * width * (K * fresh + H * queries)
            continue
        chunk = min(choice.options["chunk"], queries)
        chunks = -(-queries // chunk)
        total += 2 * rows * chunks * chunk * (features * width * (K + H) + H * chunk * (features + width))
    return Work("features and sums", 1, total, "2BSP(D + 1)(n_heads + n_kv_heads) + 2BSc n_heads(P + D + 1)")


def feature_count(choice: Choice, head_dim: int) -> int:
    """P, the features that a map makes of a head."""
    name = choice.options["feature_map"]
    if name not in ("elu", "relu", "square"):
        raise Unknown(f"feature map {name!r}")
    return head_dim * (head_dim + 1) // 2 if name == "square" else head_dim


def _kernel(choice: Choice, position: Choice | None, shape: Shape, reach: Reach) -> Work:
    if choice.options["sim"] not in ("exp", "square", "elu", "relu"):
        raise Unknown(f"similarity {choice.options['sim']!r}")
    return _softmax(choice, None if position is None else Choice("none"), shape, reach)


def feed_forward(config: ModelConfig, reach: Reach) -> Work:
    """Two matrices, or three where one gates another; of experts those that a token has, and a score for each."""
    choice, scores = config.feed_forward, 0
    if choice.name == "experts":
        scores = choice.options["n_experts"]
        matrices = choice.options["top_k"] * known(MATRICES, Choice(choice.options["each"]))
    else:
        matrices = known(MATRICES, choice)
    assert config.d_ff is not None
    each = 2 * reach.rows * reach.queries * config.d_model * (matrices * config.d_ff + scores)
    return Work("feed-forward", 1, each, f"{2 * matrices}BSHF" + (f" + {2 * scores}BSH" if scores else ""))


def _transformer(
    config: ModelConfig, i: int, block: Choice, own: Reach, across: Reach | None, shape: Shape
) -> list[Work]:
    crossing = [] if across is None else _cross(config.at(i), across)
    return [*_self_attention(config, i, own, shape, across is not None), *crossing, feed_forward(config, own)]


def _self_attention(config: ModelConfig, i: int, own: Reach, shape: Shape, cross: bool) -> list[Work]:
    choice = config.decoder_attention if cross and config.decoder_attention else config.at(i).attention
    position = config.turn(i).position or config.position
    known(POSITIONS, position)
    return attention(choice, position, shape, own)


def _cross(config: ModelConfig, across: Reach) -> list[Work]:
    """Attention to the source, whose keys and values are projected once and have no position."""
    works = attention(config.cross_attention or config.attention, None, config.shape(causal=False), across)
    names = {"4BSHA + 4BSHG": "4BSHA + 4BRHG", "4BS²A": "4BSRA"}
    return [
        work._replace(name=f"cross {work.name}", formula=names.get(work.formula, work.formula))
        for work in works
    ]


def _conv(
    config: ModelConfig, i: int, block: Choice, own: Reach, across: Reach | None, shape: Shape
) -> list[Work]:
    kernel = block.options["kernel"]
    each = 4 * kernel * own.rows * own.queries * config.d_model**2
    return [
        Work("convolution", 1, each, f"{4 * kernel}BSH²"),
        *([] if across is None else _cross(config.at(i), across)),
    ]


def _recurrent(gates: int) -> Callable[..., list[Work]]:
    def works(
        config: ModelConfig, i: int, block: Choice, own: Reach, across: Reach | None, shape: Shape
    ) -> list[Work]:
        C, units = config.d_model, block.options["units"] or config.d_model
        readers = 2 if block.options["bidirectional"] and not shape.causal else 1
        each = units // readers
        tokens = own.rows * own.queries
        total = readers * 2 * gates * tokens * each * (C + each)
        total += 2 * tokens * units * C if units != C else 0  # o_proj
        total += 0 if across is None or not across.fresh else 2 * own.rows * 2 * C * units  # start_proj
        found = [Work("recurrence", 1, total, f"{2 * gates}BSU(H + U)")]
        return found + (
            _cross(config.at(i), across) if across is not None and block.options["attention"] else []
        )

    return works


def _begins(config: ModelConfig, load: Load) -> list[Work]:
    """What comes before the layers: the map of embeddings that have a width of their own."""
    E = config.d_embedding or 0
    return [Work("embeddings", 1, 2 * load.rows * load.length * E * config.d_model, "2BSEH")]


def _ends(config: ModelConfig, load: Load) -> list[Work]:
    """What comes after the layers."""
    C, E, V = config.d_model, config.embedding_width, config.vocab_size
    e = "H" if config.d_embedding is None else "E"
    if config.kind == "encoder" and (config.labels or not config.head):
        if config.generator:
            each = 2 * load.rows * load.length * (C * C + C)
            return [Work("replaced or not", 1, each, "2BSH² + 2BSH")]
        if not config.labels:
            return []
        pooling = config.pooling or Choice("first", activation="tanh")
        if pooling.name not in ("first", "mean", "max", "last"):
            raise Unknown(f"pooling {pooling.name!r}")
        mapped = pooling.options.get("activation") != "none"
        classes = len(config.labels)
        every = pooling.options.get("map_first", False)
        each = (load.tokens if every else load.rows) * 2 * C * C * mapped + load.rows * 2 * C * classes
        shown = f"2B{'S' if every else ''}H² + " if mapped else ""
        return [Work("pooler and classes", 1, each, f"{shown}2BH x {classes}")]
    said = "2BS{}" if load.asked is None else "2{} a label"
    head = Work("head", 1, 2 * load.labels * E * V, said.format(f"{e}V"))
    unmapped = config.d_embedding is None if config.kind != "encoder" else config.head_activation == "none"
    if unmapped:
        return [head]
    square = said.format("H²" if config.d_embedding is None else "HE")
    return [Work("transform", 1, 2 * load.labels * C * E, square), head]


BLOCKS = {
    "transformer": _transformer,
    "parallel": _transformer,
    "conv": _conv,
    "lstm": _recurrent(4),
    "gru": _recurrent(3),
}
GATHER = {"softmax": _softmax, "kernel": _kernel, "linear": _linear}
POSITIONS = dict.fromkeys(("none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw", "disentangled"))
NORMS = dict.fromkeys(("layernorm", "rmsnorm", "batchnorm", "none"))
PLAIN = ("relu", "relu2", "leaky_relu", "prelu", "gelu", "silu", "tanh", "conv1x1")
GATED = ("glu", "reglu", "geglu", "swiglu")
MATRICES = dict.fromkeys(PLAIN, 2) | dict.fromkeys(GATED, 3)
