"""Memory and time of one training step on one rank of a parallel layout, from formulas.

Activations follow Korthikanti et al., 2022: tensor parallelism also divides the activations between matrix
products (sequence parallelism, sec. 4.2.2), and the first stage of a pipeline holds those of several
micro-batches (sec. 4.2.3). Sharding is that of FSDP (Zhao et al., 2023). Time is a roofline (Williams et al.,
2009): the larger of operations / (peak x efficiency) and bytes / memory bandwidth, plus what it does
not hide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.communication import (
    ParallelLayout,
    Recompute,
    Traffic,
    bubble_ratio,
    count_layers,
    held_micro_batches,
)
from polyhead.cost.flops import GATED_MLPS
from polyhead.cost.hardware import Hardware
from polyhead.cost.memory import TrainingMemory
from polyhead.cost.parameter_count import group_parameters
from polyhead.cost.workload import BatchShape, OpCount

_OUTSIDE_LAYERS = ("embeddings", "head", "transform", "pooler", "classes", "replaced or not")
_PLAIN_MATRICES = ("relu", "relu2", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


class RankMemory(NamedTuple):
    """Peak memory of one rank by category, in bytes; of a pipeline, that of its largest stage."""

    weights: float  # parameters and buffers
    gradients: float
    optimizer: float
    average: float
    gather_buffers: float  # weights and gradients that are not sharded while they are used
    activations: float | None  # kept for the backward pass; None if unknown
    recompute_buffer: float | None  # activations of a block while it is recomputed
    loss: float
    teachers: float  # whole on every rank
    peak: float | None  # the larger of the loss and of the backward pass; None if unknown


class RankTime(NamedTuple):
    """Seconds of one optimizer step on one rank. Communication counts where no computation hides it."""

    compute: float  # matrix products, those of recomputation included
    tensor: float
    context: float
    data: float  # gradients, and gathered weights
    pipeline: float
    bubble: float
    optimizer: float
    total: float
    labels_per_s: float  # of this rank
    mfu: float  # operations of the model / (total x peak), without recomputation and masked pairs

    @property
    def exposed_communication(self) -> float:
        """Seconds of communication that no computation hides."""
        return self.tensor + self.context + self.data + self.pipeline


class SelectiveBlock(NamedTuple):
    """What selective recomputation of a block keeps and repeats, per token."""

    kept_numbers: int
    repeated_flops: int


def count_selective(config: ModelConfig) -> SelectiveBlock:
    """What torchtitan's selective recomputation keeps: every second matrix product and attention's output.

    The products are those of queries, keys, values, output, and the feed-forward layer, in this order
    (torchtitan, activation_checkpoint.selective_ac_option: op).
    """
    config_of_layers = [config.layer_config(i) for i in range(config.n_layers)]
    blocks = {
        (layer.block_choice(False).name, layer.attention.name, layer.attention.options.get("projections"))
        for layer in config_of_layers
    }
    ff = config.feed_forward.name
    known_ff = (*_PLAIN_MATRICES, *GATED_MLPS)
    if (
        config.kind == "encoder-decoder"
        or blocks != {("transformer", "softmax", "all")}
        or ff not in known_ff
    ):
        raise UserError(
            "recompute is 'selective', which is known for transformer blocks of one stack with softmax "
            "attention and a dense feed-forward layer; expected 'none' or 'blocks'"
        )
    shape = config.attention_shape(causal=True)
    H, d_ff = config.d_model, config.d_ff or 0
    queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    read, values = shape.n_heads * shape.v_head_dim, shape.n_kv_heads * shape.v_head_dim
    products = [(H, queries), (H, keys), (H, values), (read, H)]  # (inputs, outputs)
    products += [(H, d_ff)] * (2 if ff in GATED_MLPS else 1) + [(d_ff, H)]
    kept = H + read + sum(outputs for _, outputs in products[::2])
    return SelectiveBlock(kept, sum(2 * inputs * outputs for inputs, outputs in products[1::2]))


def with_selective_recompute(
    config: ModelConfig, memory: TrainingMemory, batch_shape: BatchShape, itemsize: int
) -> TrainingMemory:
    """``memory``, that of a batch without recomputation, with selective recomputation of every block."""
    tokens = batch_shape.rows * batch_shape.length
    kept = count_selective(config).kept_numbers * tokens * config.n_layers * itemsize
    block = None if memory.activations is None else memory.activations // config.n_layers
    return memory._replace(activations=kept, block_activations=block)


def micro_batch_shape(batch_shape: BatchShape, layout: ParallelLayout) -> BatchShape:
    """The shape of one micro-batch on one rank: fewer rows, and its part of the tokens of each."""
    m, c = layout.micro_batches, layout.context_parallel
    labels = batch_shape.label_count
    return BatchShape(
        math.ceil(batch_shape.rows / m),
        batch_shape.length // c,
        batch_shape.source // c,
        None if labels is None else math.ceil(labels / (m * c)),
    )


def estimate_rank_memory(
    config: ModelConfig,
    memory: TrainingMemory,
    micro_batch: BatchShape,
    layout: ParallelLayout,
    accumulate: int = 1,
) -> RankMemory:
    """Estimate the memory of the rank that needs most.

    ``memory`` is that of the whole model on one ``micro_batch`` of a rank.
    """
    t, p, m, shards = layout.tensor_parallel, layout.pipeline, layout.micro_batches, layout.shards
    layers = count_layers(config)
    stage_layers = math.ceil(layers / p)
    groups = group_parameters(config)
    numbers = sum(group.total for group in groups)
    layer_numbers = sum(group.total for group in groups if "layer" in group.name) / layers
    edge_numbers = config.vocab_size * config.embedding_width  # of the embeddings, and of the head
    # the first stage has the embeddings and as many layers as any other
    stage_numbers = stage_layers * layer_numbers + edge_numbers if p > 1 else numbers
    share = min(1.0, stage_numbers / numbers) / t
    sizes = [share * x / shards for x in (memory.weights, memory.gradients, memory.optimizer, memory.average)]
    weights, gradients, optimizer, average = sizes
    gathered = 0.0
    if shards > 1:
        # two parts of the model and the gradients of one: a layer, or the embeddings or the head if that is
        # larger; in a pipeline the whole stage, which stays gathered between micro-batches
        size, gradient = layout.state_bytes, layout.gradient_bytes * (memory.gradients > 0)
        part = max(layer_numbers, edge_numbers) / t
        gathered = share * numbers * (size + gradient) if p > 1 else part * (2 * size + gradient)
    if t > 1:  # the whole rows of the head's input, of which sequence parallelism keeps a part per rank
        gathered += micro_batch.labels * config.embedding_width * layout.activation_bytes
    loss = memory.loss / t
    held = held_micro_batches(p, m, layout.interleave) * stage_layers / layers / t  # of a micro-batch
    activations = None if memory.activations is None else held * memory.activations
    recomputation = None if memory.block_activations is None else memory.block_activations / t
    peak = None
    if activations is not None and recomputation is not None:
        states = weights + memory.teachers + optimizer + average + gathered + activations
        has_gradients = m * accumulate > 1  # those of earlier micro-batches, while the loss is computed
        peak = states + max(gradients + recomputation, loss + (gradients if has_gradients else 0))
    return RankMemory(
        weights,
        gradients,
        optimizer,
        average,
        gathered,
        activations,
        recomputation,
        loss,
        memory.teachers,
        peak,
    )


def estimate_rank_time(
    config: ModelConfig,
    works: list[OpCount],
    batch_shape: BatchShape,
    layout: ParallelLayout,
    traffic: Traffic,
    memory: RankMemory,
    hardware: Hardware,
    precision: str,
    *,
    times: int = 3,
    recompute: Recompute = "none",
    accumulate: int = 1,
    teachers: float = 0,
) -> RankTime:
    """Estimate the time of one optimizer step.

    ``works`` are the operations of a forward pass over the batch of a data-parallel rank, ``times`` the cost
    of forward and backward passes in forward passes, ``teachers`` the operations of teachers. Masked pairs
    do not count: attention kernels of accelerators skip them. Sums of gradients overlap with the backward
    pass of the last micro-batch, gathered weights and the transfers between stages with all computation;
    tensor and context parallelism with none.
    """
    assert traffic.seconds_by_kind is not None
    t, p, m = layout.tensor_parallel, layout.pipeline, layout.micro_batches
    split = t * p * layout.context_parallel
    forward = sum(work.total - work.times * work.masked_flops for work in works)
    model = accumulate * times * forward + teachers
    repeated = accumulate * _repeated_flops(config, works, batch_shape, recompute)
    peak = hardware.flops[precision]
    by_flops = (model + repeated) / split / (peak * hardware.efficiency)
    # every micro-batch reads the weights forward and backward, and forward again with recomputation; its
    # activations are written and read
    passes = 2 if recompute == "none" else 3
    activations = (memory.activations or 0.0) / held_micro_batches(p, m, layout.interleave)
    weights = memory.weights / 4 * layout.shards * layout.activation_bytes
    moved = accumulate * m * (passes * weights + 2 * activations)
    by_bytes = moved / hardware.memory_bandwidth
    compute = max(by_flops, by_bytes)
    seconds = traffic.seconds_by_kind
    backward = compute / (m * accumulate) * (times - 1) / times  # of the last micro-batch
    data = max(0.0, seconds["data"] - backward) + max(0.0, seconds["gather"] - compute)
    pipeline = max(0.0, seconds["pipeline"] - compute)
    work_seconds = compute + seconds["tensor"] + seconds["context"]
    bubble = work_seconds * bubble_ratio(p, m, layout.interleave)
    # gradients are read; weights, their average and the optimizer state are read and written
    state = memory.gradients + 2 * (memory.weights + memory.optimizer + memory.average)
    optimizer = state / hardware.memory_bandwidth
    total = work_seconds + bubble + data + pipeline + optimizer
    labels = accumulate * batch_shape.labels / split
    return RankTime(
        compute,
        seconds["tensor"],
        seconds["context"],
        data,
        pipeline,
        bubble,
        optimizer,
        total,
        labels / total,
        model / split / (total * peak),
    )


def _repeated_flops(
    config: ModelConfig, works: list[OpCount], batch_shape: BatchShape, recompute: Recompute
) -> float:
    """Operations of a forward pass that are repeated in the backward pass."""
    if recompute == "blocks":
        return sum(
            work.total - work.times * work.masked_flops for work in works if work.name not in _OUTSIDE_LAYERS
        )
    if recompute == "selective":
        return (
            count_selective(config).repeated_flops * config.n_layers * batch_shape.rows * batch_shape.length
        )
    return 0.0
