"""Communication between processes, from formulas.

The bytes that ``train`` sends for its gradients are tested against the bytes of its sockets. Tensor
parallelism and pipelines are predictions only: nothing here runs with them yet.

n ranks of data parallelism, t of tensor parallelism, p stages of a pipeline, m micro-batches.
"""

from __future__ import annotations

from typing import NamedTuple

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.workload import BatchShape


class ParallelLayout(NamedTuple):
    """How a model is spread over processes, and the bandwidth between them."""

    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    gradient_bytes: int = 4  # per number
    activation_bytes: int = 4
    bandwidth: float | None = None  # bytes per second that a rank sends

    @property
    def ranks(self) -> int:
        return self.data_parallel * self.tensor_parallel * self.pipeline

    def check(self, config: ModelConfig, batch_shape: BatchShape) -> ParallelLayout:
        """Return the layout, or raise a UserError if the model cannot be spread like this."""
        for name, value in self._asdict().items():
            if value is not None and value <= 0:
                raise UserError(f"{name.replace('_', '-')} is {value}, expected more than 0")
        t, depth = self.tensor_parallel, _num_layers(config)
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
        return self


class Traffic(NamedTuple):
    """Bytes that a rank sends in one step, and its idle time."""

    ranks: int
    share: float  # fraction of the weights, gradients and optimizer state that a rank holds
    data: float  # all-reduce of the gradients after the backward pass
    tensor: float  # all-reduce of partial products in every layer
    pipeline: float  # outputs of a stage and gradients of its inputs
    bubble: float  # idle time of a pipeline / its working time
    idle: float  # idle time / total time
    held_gpipe: int  # micro-batches whose activations the first stage keeps at once, with GPipe
    held_1f1b: int  # the same with 1F1B
    seconds: float | None  # time to send without overlap; None if the bandwidth is unknown

    @property
    def total(self) -> float:
        return self.data + self.tensor + self.pipeline


def ring_all_reduce_bytes(nbytes: float, ranks: int) -> float:
    """Bytes that each of n ranks sends, and receives, in a ring all-reduce: 2 (n - 1) / n of ``nbytes``.

    n - 1 chunks of one n-th for the reduce-scatter and as many for the all-gather (Patarasuk & Yuan, 2009).
    """
    return 2 * (ranks - 1) / ranks * nbytes


def tensor_parallel_bytes(
    rows: int, length: int, d_model: int, layers: int, ranks: int, itemsize: int, all_reduces: int = 2
) -> float:
    """Bytes that a rank sends in one step if matrix products are split among t ranks.

    Each layer all-reduces B S H numbers ``all_reduces`` times forward, after attention and after the
    feed-forward layer, and as often backward (Shoeybi et al., 2019, sec. 3; Narayanan et al., 2021, sec.
    3.2). The cross-attention of a decoder is a third.
    """
    return 2 * all_reduces * layers * ring_all_reduce_bytes(rows * length * d_model * itemsize, ranks)


def bubble_ratio(stages: int, micro_batches: int) -> float:
    """Idle time of a pipeline / its working time.

    (p - 1) / m, for GPipe and for 1F1B (Narayanan et al., 2021, sec. 2.2.1).
    """
    return (stages - 1) / micro_batches


def idle_fraction(stages: int, micro_batches: int) -> float:
    """Idle time of a pipeline / total time: (p - 1) / (m + p - 1) (Huang et al., 2019, sec. 2.3)."""
    return (stages - 1) / (micro_batches + stages - 1)


def point_to_point_bytes(rows: int, length: int, d_model: int, itemsize: int) -> int:
    """Bytes sent between two stages in one step: B S H numbers forward and as many gradients backward."""
    return 2 * rows * length * d_model * itemsize


def estimate_traffic(
    config: ModelConfig,
    batch_shape: BatchShape,
    n_trainable: int,
    layout: ParallelLayout,
    accumulate: int = 1,
) -> Traffic:
    """Estimate the bytes that one rank sends in one step.

    ``batch_shape`` is the batch of each data-parallel rank. Gradients are sent once for the ``accumulate``
    batches of a step. ``n_trainable`` is the number of parameters with gradients; stages and tensor-parallel
    ranks hold equal shares of them.
    """
    n, t, p, m, wide, size, bandwidth = layout.check(config, batch_shape)
    gradients = n_trainable * wide / (t * p)
    data = ring_all_reduce_bytes(gradients, n)
    tensor, between = 0.0, 0
    sides = [(batch_shape.length, config.n_layers, 2)]
    if config.kind == "encoder-decoder":
        sides = [(batch_shape.source, config.n_layers, 2), (batch_shape.length, config.decoder_layers, 3)]
    for length, layers, sums in sides:
        tensor += tensor_parallel_bytes(batch_shape.rows, length, config.d_model, layers, t, size, sums) / p
    if p > 1:
        # after the encoder, its output is sent along with that of the decoder
        widest = batch_shape.length + batch_shape.source
        between = point_to_point_bytes(batch_shape.rows, widest, config.d_model, size)
    tensor, between = accumulate * tensor, accumulate * between
    total = data + tensor + between
    seconds = None if bandwidth is None else total / bandwidth
    return Traffic(
        layout.ranks,
        1 / (t * p),
        data,
        tensor,
        between,
        bubble_ratio(p, m),
        idle_fraction(p, m),
        m,
        min(p, m),
        seconds,
    )


def _num_layers(config: ModelConfig) -> int:
    return config.n_layers + (config.decoder_layers if config.kind == "encoder-decoder" else 0)
