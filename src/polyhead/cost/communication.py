"""Communication between processes, from formulas.

With gloo, the bytes that ``train`` sends in every form of parallelism are tested against the bytes of its
sockets (tests/train/distributed/test_traffic.py). With NCCL they are predictions.

n replicas of the model, f ranks that shard it (FSDP), c of context parallelism, t of tensor parallelism, p
stages of a pipeline of v model chunks each, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.hardware import CollectiveBackend, Hardware
from polyhead.cost.parameter_count import group_parameters
from polyhead.cost.workload import BatchShape

Recompute = Literal["none", "selective", "blocks"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
_NODE_SIZE = 8  # ranks per machine if neither the layout nor the hardware defines it
_STATEFUL_BLOCKS = ("conv", "gated_conv", "rnn", "lstm", "gru")


class ParallelLayout(NamedTuple):
    """How a model is spread over processes, and the bandwidth between them.

    Ranks are numbered with tensor parallelism innermost, then context, shard, data and pipeline, so that the
    ranks that communicate most are on one machine (Narayanan et al., 2021, sec. 3.2). Weights, gradients and
    optimizer state are sharded over ``shard`` x ``context_parallel`` ranks if ``shard`` is more than 1.
    """

    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    gradient_bytes: int = 4  # per number
    activation_bytes: int = 4
    bandwidth: float | None = None  # bytes per second that a rank sends, to other machines
    shard: int = 1
    context_parallel: int = 1
    interleave: int = 1  # model chunks per pipeline stage
    intra_node_bandwidth: float | None = None  # within a machine; None: the same as ``bandwidth``
    nproc_per_node: int | None = None
    backend: CollectiveBackend | None = None  # None: NCCL
    # per number of gathered weights, and of hidden states between parts; autocast leaves both in fp32
    state_bytes: int = 4
    shards_context: bool = False  # whether context ranks share the weights also if ``shard`` is 1

    @property
    def ranks(self) -> int:
        return self.stage_ranks * self.pipeline

    @property
    def stage_ranks(self) -> int:
        """Number of ranks with the same layers."""
        return self.data_parallel * self.shard * self.context_parallel * self.tensor_parallel

    @property
    def shards(self) -> int:
        """Number of ranks over which weights, gradients and optimizer state are sharded."""
        return self.shard * self.context_parallel if self.shard > 1 or self.shards_context else 1

    @property
    def replicas(self) -> int:
        """Number of ranks with the same shard, which sum its gradients."""
        return self.data_parallel * self.shard * self.context_parallel // self.shards

    def with_hardware(self, hardware: Hardware) -> ParallelLayout:
        """The layout with the links of ``hardware`` where it does not define its own."""
        return self._replace(
            bandwidth=self.bandwidth or hardware.inter_node_bandwidth,
            intra_node_bandwidth=self.intra_node_bandwidth or hardware.intra_node_bandwidth,
            nproc_per_node=self.nproc_per_node or hardware.nproc_per_node,
            backend=self.backend or hardware.backend,
        )

    def link_bandwidth(self, stride: int, size: int) -> float | None:
        """Bandwidth of the slowest link of ``size`` ranks whose numbers are ``stride`` apart."""
        if stride * size <= (self.nproc_per_node or _NODE_SIZE):
            return self.intra_node_bandwidth or self.bandwidth
        return self.bandwidth

    def check(self, config: ModelConfig, batch_shape: BatchShape) -> ParallelLayout:
        """Return the layout, or raise a UserError if the model cannot be spread like this."""
        for name, value in self._asdict().items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise UserError(f"{name.replace('_', '-')} is {value}, expected more than 0")
        t, depth = self.tensor_parallel, count_layers(config)
        if config.encoder is not None and max(t, self.pipeline, self.context_parallel) > 1:
            raise UserError(
                "the communication of tensor, pipeline and context parallelism is known for an encoder with "
                "the sizes of its decoder: expected 1 of each, or remove model.encoder"
            )
        if config.n_heads % t:
            fits = ", ".join(str(n) for n in range(1, config.n_heads + 1) if config.n_heads % n == 0)
            raise UserError(
                f"tensor-parallel is {t}, which does not divide n_heads ({config.n_heads}): one of {fits}"
            )
        if self.pipeline > depth:
            raise UserError(f"pipeline has {self.pipeline} stages, and the model {depth} layers")
        if self.micro_batches > batch_shape.rows:
            raise UserError(
                f"micro-batches is {self.micro_batches}, more than the {batch_shape.rows} rows of a batch"
            )
        if self.interleave > 1 and self.pipeline * self.interleave > depth:
            raise UserError(
                f"interleave is {self.interleave} with {self.pipeline} pipeline stages, and the model has "
                f"{depth} layers; {self.pipeline} x interleave must be at most that"
            )
        if self.interleave > 1 and self.micro_batches % self.pipeline:  # Narayanan et al., 2021, sec. 2.2.2
            raise UserError(
                f"micro-batches is {self.micro_batches}; with interleave it must be a multiple of the "
                f"{self.pipeline} pipeline stages"
            )
        self._check_context(config, batch_shape)
        return self

    def _check_context(self, config: ModelConfig, batch_shape: BatchShape) -> None:
        c = self.context_parallel
        for length in (batch_shape.length, batch_shape.source):
            if length % c:
                raise UserError(
                    f"context-parallel is {c}, which does not divide the {length} tokens of a row"
                )
        if c > 1 and (part := _find_stateful_part(config)):
            raise UserError(
                f"context-parallel is {c}, and {part} passes a state along the row; expected 1 for this model"
            )


class Traffic(NamedTuple):
    """Bytes that a rank sends in one step, the one that sends most, and its idle time."""

    ranks: int
    share: float  # fraction of the weights, gradients and optimizer state that a rank holds
    data: float  # sums of the gradients: all-reduce over replicas, reduce-scatter over shards
    tensor: float  # all-reduce of partial products, in every layer, embedding and loss
    pipeline: float  # outputs of a stage and gradients of its inputs and of tied weights
    bubble: float  # idle time of a pipeline / its working time
    idle: float  # idle time / total time
    held_gpipe: int  # micro-batches whose activations the first stage keeps at once, with GPipe
    held_1f1b: float  # the same with 1F1B, interleaved or not
    gather: float  # sharded weights, before their use
    context: float  # keys and values of the other parts of a row, and their gradients
    seconds: float | None  # time to send without overlap; None if a bandwidth is unknown
    seconds_by_kind: dict[str, float] | None  # the same for each kind

    @property
    def total(self) -> float:
        return self.data + self.gather + self.context + self.tensor + self.pipeline


def ring_all_reduce_bytes(nbytes: float, ranks: int) -> float:
    """Bytes that each of n ranks sends, and receives, in a ring all-reduce: 2 (n - 1) / n of ``nbytes``.

    n - 1 chunks of one n-th for the reduce-scatter and as many for the all-gather (Patarasuk & Yuan, 2009).
    """
    return 2 * (ranks - 1) / ranks * nbytes


def bubble_ratio(stages: int, micro_batches: int, interleave: int = 1) -> float:
    """Idle time of a pipeline / its working time.

    (p - 1) / (m v), for GPipe and for 1F1B (Narayanan et al., 2021, sec. 2.2.1 and 2.2.2).
    """
    return (stages - 1) / (micro_batches * interleave)


def idle_fraction(stages: int, micro_batches: int, interleave: int = 1) -> float:
    """Idle time of a pipeline / total time: (p - 1) / (m v + p - 1) (Huang et al., 2019, sec. 2.3)."""
    return (stages - 1) / (micro_batches * interleave + stages - 1)


def held_micro_batches(stages: int, micro_batches: int, interleave: int = 1) -> float:
    """Micro-batches whose activations the first stage keeps at once, with 1F1B.

    At most p; p + (p - 1) / v with interleaving (Korthikanti et al., 2022, sec. 4.2.3).
    """
    return min(micro_batches, stages + ((stages - 1) / interleave if interleave > 1 else 0))


def shard_gather_bytes(nbytes: float, ranks: int) -> float:
    """Bytes that each of n ranks sends in an all-gather: (n - 1) / n of ``nbytes``."""
    return (ranks - 1) / ranks * nbytes


def reduce_scatter_bytes(nbytes: float, ranks: int, backend: CollectiveBackend | None = None) -> float:
    """Bytes that each of n ranks sends in a reduce-scatter: as in an all-gather; gloo does an all-reduce."""
    return ring_all_reduce_bytes(nbytes, ranks) if backend == "gloo" else shard_gather_bytes(nbytes, ranks)


def point_to_point_bytes(rows: int, length: int, d_model: int, itemsize: int) -> int:
    """Bytes sent between two stages in one step: B S H numbers forward and as many gradients backward."""
    return 2 * rows * length * d_model * itemsize


def estimate_traffic(
    config: ModelConfig,
    batch_shape: BatchShape,
    n_trainable: int,
    layout: ParallelLayout,
    accumulate: int = 1,
    recompute: Recompute = "none",
    n_parameters: int | None = None,
) -> Traffic:
    """Estimate the bytes that one rank sends in one step.

    ``batch_shape`` is the batch of each data-parallel rank. Gradients are sent once for the ``accumulate``
    batches of a step. ``n_trainable`` is the number of parameters with gradients, ``n_parameters`` that of
    all, if they differ; tensor-parallel ranks hold equal shares of them. ``recompute`` of blocks repeats the
    communication of their forward pass. Counts of labels, norms and flags are left out.
    """
    layout.check(config, batch_shape)
    p, m, v = layout.pipeline, layout.micro_batches, layout.interleave
    shards, split = layout.shards, layout.tensor_parallel
    stages = _list_stage_parts(config, layout)
    total = sum(group.total for group in group_parameters(config))
    stage_share = max(sum(part.numbers for part in parts) for parts in stages) / total
    gradients = n_trainable * stage_share * layout.gradient_bytes / split
    data = reduce_scatter_bytes(gradients, shards, layout.backend)
    data += ring_all_reduce_bytes(gradients / shards, layout.replicas)
    gather = 0.0
    if shards > 1:
        # The weights of a block for its forward and again for its backward pass, and once more to recompute
        # it; in the blocks of a decoder with a source also for its keys and values, and their backward pass.
        # All others once, as they stay gathered in between. In a pipeline weights stay gathered after a
        # backward pass, until the next forward pass has used them; all but those of blocks the whole step.
        passes, repeats = accumulate * m, recompute == "blocks"
        times = {"block": (2 + repeats) * passes, "source block": (4 + repeats) * passes, "other": passes}
        if p > 1:
            times = {
                "block": (1 + repeats) * passes + 1,
                "source block": (2 + repeats) * passes + 1,
                "other": 1,
            }
        gathers = max(sum(times[part.kind] * part.numbers for part in parts) for parts in stages) / total
        weights = (n_parameters or n_trainable) * layout.state_bytes / split
        gather = gathers * shard_gather_bytes(weights, shards)
    tensor = accumulate * _count_tensor_bytes(config, batch_shape, layout, recompute == "blocks") / p
    context = accumulate * _count_context_bytes(config, batch_shape, layout, recompute == "blocks") / p
    between = _count_pipeline_bytes(config, batch_shape, layout, accumulate)
    bytes_by_kind = {
        "data": data,
        "gather": gather,
        "tensor": tensor,
        "context": context,
        "pipeline": between,
    }
    seconds = _count_seconds(bytes_by_kind, layout)
    return Traffic(
        layout.ranks,
        1 / (split * p * shards),
        data,
        tensor,
        between,
        bubble_ratio(p, m, v),
        idle_fraction(p, m, v),
        m,
        held_micro_batches(p, m, v),
        gather,
        context,
        None if seconds is None else sum(seconds.values()),
        seconds,
    )


class _StagePart(NamedTuple):
    """Weights of a stage: of blocks, of blocks that read a source, or of the other parts."""

    kind: Literal["block", "source block", "other"]
    numbers: float


def _list_stage_parts(config: ModelConfig, layout: ParallelLayout) -> list[list[_StagePart]]:
    """The weights of each rank of a pipeline; tied ones are copies where several use them."""
    p, ends = layout.pipeline, _partition_layers(config, layout)
    stages: list[list[_StagePart]] = [[] for _ in range(p)]
    depth, n_encoder = ends[-1], config.n_layers if config.kind == "encoder-decoder" else 0
    decoder_stage = next(i for i, end in enumerate(ends) if end > n_encoder)
    for group in group_parameters(config):
        if "layer" in group.name:
            reads_source = config.kind == "encoder-decoder" and "decoder" in group.name
            low, high = (0, n_encoder) if n_encoder and not reads_source else (n_encoder, depth)
            for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                n_layers = max(0, min(end, high) - max(start, low))
                numbers = group.total * n_layers / (high - low)
                stages[i % p].append(_StagePart("source block" if reads_source else "block", numbers))
        else:
            i = (
                decoder_stage
                if "decoder" in group.name
                else 0
                if "embedding" in group.name
                else len(ends) - 1
            )
            stages[i % p].append(_StagePart("other", group.total))
    table = config.vocab_size * config.embedding_width
    for rank in sorted({i % p for i in _find_tied_stages(config, ends)})[1:]:
        stages[rank].append(_StagePart("other", table))
    return stages


def _partition_layers(config: ModelConfig, layout: ParallelLayout) -> list[int]:
    """The number of layers up to the end of each stage; the first stages have one more."""
    depth, n_stages = count_layers(config), layout.pipeline * layout.interleave
    return [depth // n_stages * (i + 1) + min(i + 1, depth % n_stages) for i in range(n_stages)]


def _count_tensor_bytes(
    config: ModelConfig, batch_shape: BatchShape, layout: ParallelLayout, recomputes: bool
) -> float:
    """Bytes that a rank sends for the split products of one batch, in all stages.

    Forward sums are those of products, in their precision; backward ones those of the gradients of hidden
    states. Embeddings sum the vectors of tokens, and the loss two numbers of each label and the gradient of
    the head's input.
    """
    t, rows, c = layout.tensor_parallel, batch_shape.rows, layout.context_parallel
    state, width = layout.state_bytes, config.d_model
    # without dropout and norm after the last sum of a block, nothing in its backward pass needs that sum
    ends_early = config.norm_first and not config.sandwich_norm and not config.dropout
    nbytes = 0.0
    for length, layers, sums, _ in _count_sides(config, batch_shape):
        repeated = sums - ends_early if recomputes else 0
        tokens = rows * length // c
        nbytes += layers * tokens * width * ((sums + repeated) * layout.activation_bytes + sums * state)
        nbytes += tokens * config.embedding_width * state
    if config.kind == "encoder-decoder":  # the gradient of the source, which every decoder layer reads
        nbytes += config.decoder_layers * (rows * batch_shape.source // c) * width * state
    if config.kind != "encoder" or (config.lm_head and not config.labels):
        nbytes += batch_shape.labels / c * (config.embedding_width * state + 2 * 4)
    return ring_all_reduce_bytes(nbytes, t)


def _count_context_bytes(
    config: ModelConfig, batch_shape: BatchShape, layout: ParallelLayout, recomputes: bool
) -> float:
    """Bytes that a rank sends for keys, values and positions of one batch, in all stages."""
    c, shape = layout.context_parallel, config.attention_shape(causal=False)
    kv_width = shape.n_kv_heads * (shape.head_dim + shape.v_head_dim)
    nbytes = 0.0
    for length, layers, _, kv_rows in _count_sides(config, batch_shape):
        kv = layers * batch_shape.rows * kv_rows * kv_width * layout.activation_bytes / layout.tensor_parallel
        nbytes += (2 if recomputes else 1) * shard_gather_bytes(kv, c)
        nbytes += reduce_scatter_bytes(kv, c, layout.backend)
        nbytes += shard_gather_bytes(batch_shape.rows * length * 8, c)  # positions, as int64
    return nbytes


def _count_pipeline_bytes(
    config: ModelConfig, batch_shape: BatchShape, layout: ParallelLayout, accumulate: int
) -> float:
    """Bytes that the busiest rank of a pipeline sends: hidden states, their gradients, those of tied weights.

    After the encoder its output is sent along with the states of the decoder. The first rank with a tied
    weight adds up the gradients of the others and sends them the sum.
    """
    p, c = layout.pipeline, layout.context_parallel
    if p == 1:
        return 0.0
    is_pair, ends = config.kind == "encoder-decoder", _partition_layers(config, layout)
    sent = [0.0] * p
    for i, end in enumerate(ends[:-1]):
        tokens = batch_shape.length
        if is_pair:
            tokens = batch_shape.source + (tokens if end > config.n_layers else 0)
        both_ways = point_to_point_bytes(
            accumulate * batch_shape.rows, tokens // c, config.d_model, layout.state_bytes
        )
        sent[i % p] += both_ways / 2
        sent[(i + 1) % p] += both_ways / 2
    users = _find_tied_stages(config, ends)
    ranks = sorted({i % p for i in users})
    table = config.vocab_size * config.embedding_width * layout.gradient_bytes
    for rank in ranks if len(ranks) > 1 else []:
        times = len(ranks) - 1 if rank == ranks[0] else 1
        sent[rank] += times * table / (layout.tensor_parallel * layout.shards)
    return max(sent)


def _find_tied_stages(config: ModelConfig, ends: list[int]) -> list[int]:
    """The stages that use a tied embedding, of stages with layers up to these numbers."""
    first, last = 0, len(ends) - 1
    has_head = config.kind != "encoder" or (config.lm_head and not config.labels)
    tied = config.tie_embeddings
    if config.kind != "encoder-decoder":
        return [first, last] if tied in ("all", "target") and has_head else []
    decoder = next(i for i, end in enumerate(ends) if end > config.n_layers)
    stages = {
        "all": [first, decoder, last],
        "target": [decoder, last],
        "inputs": [first, decoder],
        "none": [],
    }
    return stages[tied]


def _count_seconds(bytes_by_kind: dict[str, float], layout: ParallelLayout) -> dict[str, float] | None:
    """Seconds to send the bytes of each kind over its link; None if a bandwidth is unknown."""
    t, c = layout.tensor_parallel, layout.context_parallel
    links = {
        "tensor": layout.link_bandwidth(1, t),
        "context": layout.link_bandwidth(t, c),
        "gather": layout.link_bandwidth(t, layout.shards),
        "data": layout.link_bandwidth(t, layout.stage_ranks // t),
        "pipeline": layout.link_bandwidth(layout.stage_ranks, layout.pipeline),
    }
    seconds = {}
    for kind, nbytes in bytes_by_kind.items():
        bandwidth = links[kind]
        if bandwidth is None:
            return None
        seconds[kind] = nbytes / bandwidth
    return seconds


def _count_sides(config: ModelConfig, batch_shape: BatchShape) -> Iterator[tuple[int, int, int, int]]:
    """(tokens of a row, layers, sub-layers, tokens with keys and values of a row) of every stack."""
    if config.kind == "encoder-decoder":
        yield batch_shape.source, config.n_layers, 2, batch_shape.source
        yield batch_shape.length, config.decoder_layers, 3, batch_shape.length + batch_shape.source
    else:
        yield batch_shape.length, config.n_layers, 2, batch_shape.length


def _find_stateful_part(config: ModelConfig) -> str:
    """Name of a part that passes a state along a row; "" if there is none."""
    for i in range(config.n_layers):
        layer = config.layer_config(i)
        for block in (layer.block, layer.block_choice(config.kind == "encoder-decoder")):
            if block.name in _STATEFUL_BLOCKS:
                return f"block {block.name}"
        if layer.attention.name == "linear":
            return "attention linear"
    return ""


def count_layers(config: ModelConfig) -> int:
    """Number of layers of all stacks."""
    return config.n_layers + (config.decoder_layers if config.kind == "encoder-decoder" else 0)
