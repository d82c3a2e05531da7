"""Messages between processes, from formulas. What ``train`` sends for its gradients is tested against the bytes of its
sockets; tensor parallelism and pipelines are predictions, for nothing here runs so yet.

n ranks of data parallelism, t of tensor parallelism, p stages of a pipeline, m micro-batches.
"""

from __future__ import annotations

from typing import NamedTuple

from polyhead.analysis.cost.work import Load
from polyhead.config import ModelConfig
from polyhead.errors import UserError


class Layout(NamedTuple):
    """How a model is spread over processes, and what joins them."""

    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    gradient_bytes: int = 4  # of a number
    activation_bytes: int = 4
    bandwidth: float | None = None  # bytes a second that a rank sends

    @property
    def ranks(self) -> int:
        return self.data_parallel * self.tensor_parallel * self.pipeline

    def check(self, config: ModelConfig, load: Load) -> Layout:
        """The layout itself, or a UserError that says why the model cannot be spread so."""
        for name, value in self._asdict().items():
            if value is not None and value <= 0:
                raise UserError(f"{name.replace('_', '-')} is {value}, wanted more than 0")
        t, depth = self.tensor_parallel, _depth(config)
        if config.n_heads % t:
            fits = ", ".join(str(n) for n in range(1, config.n_heads + 1) if config.n_heads % n == 0)
            raise UserError(
                f"tensor-parallel is {t}, which does not divide n_heads ({config.n_heads}): one of {fits}"
            )
        if self.pipeline > depth:
            raise UserError(f"pipeline has {self.pipeline} stages, and the model {depth} layers")
        if self.micro_batches > load.rows:
            raise UserError(
                f"micro-batches is {self.micro_batches}, more than the {load.rows} rows of a batch"
            )
        return self


class Traffic(NamedTuple):
    """What a rank sends in one step, in bytes, and how long it waits for nothing."""

    ranks: int
    share: float  # of the weights, their gradients and the state of the optimiser, that a rank holds
    data: float  # gradients, after the backward pass
    tensor: float  # sums of partial products, in every layer
    pipeline: float  # what leaves a stage, and the gradients of what entered it
    bubble: float  # idle time of a pipeline by the time of its work
    idle: float  # the same by all time
    held_gpipe: int  # micro-batches whose activations the first stage keeps at once
    held_1f1b: int
    seconds: float | None  # of sending, nothing overlapped, if a bandwidth is known

    @property
    def total(self) -> float:
        return self.data + self.tensor + self.pipeline


def ring_all_reduce(nbytes: float, ranks: int) -> float:
    """Bytes that every rank sends, and receives, to sum so many over n ranks in a ring: 2 (n - 1) / n of them.

    n - 1 pieces of one n-th while the sums travel, and as many while they are told (Patarasuk & Yuan, 2009).
    """
    return 2 * (ranks - 1) / ranks * nbytes


def tensor_parallel(
    rows: int, length: int, d_model: int, layers: int, ranks: int, itemsize: int, sums: int = 2
) -> float:
    """Bytes that a rank sends in one step for products that are split among t ranks.

    Each layer sums B S H numbers ``sums`` times forward, after attention and after the feed-forward layer, and as often
    backward (Shoeybi et al., 2019, sec. 3; Narayanan et al., 2021, sec. 3.2); a decoder's attention to the source is a third.
    """
    return 2 * sums * layers * ring_all_reduce(rows * length * d_model * itemsize, ranks)


def bubble(stages: int, micro_batches: int) -> float:
    """Idle time of a pipeline by the time of its work: (p - 1) / m, of GPipe and of 1F1B (Narayanan et al., 2021, sec. 2.2.1)."""
    return (stages - 1) / micro_batches


def idle_share(stages: int, micro_batches: int) -> float:
    """Idle time by all time: (p - 1) / (m + p - 1) (Huang et al., 2019, sec. 2.3)."""
    return (stages - 1) / (micro_batches + stages - 1)


def point_to_point(rows: int, length: int, d_model: int, itemsize: int) -> int:
    """Bytes from one stage to the next and back in one step: B S H numbers, and as many gradients."""
    return 2 * rows * length * d_model * itemsize


def traffic(config: ModelConfig, load: Load, learned: int, layout: Layout, accumulate: int = 1) -> Traffic:
    """What one rank sends in one step over a batch of that many rows on each data-parallel rank.

    Of several batches that are ``accumulate``d in a step the gradients go once.
    ``learned`` are the parameters with gradients; stages and ranks of tensor parallelism hold equal shares of them.
    """
    n, t, p, m, wide, size, bandwidth = layout.check(config, load)
    gradients = learned * wide / (t * p)
    data = ring_all_reduce(gradients, n)
    tensor, between = 0.0, 0
    sides = [(load.length, config.n_layers, 2)]
    if config.kind == "encoder-decoder":
        sides = [(load.source, config.n_layers, 2), (load.length, config.decoder_layers, 3)]
    for length, layers, sums in sides:
        tensor += tensor_parallel(load.rows, length, config.d_model, layers, t, size, sums) / p
    if p > 1:
        widest = load.length + load.source  # beyond the encoder its output travels along with the decoder's
        between = point_to_point(load.rows, widest, config.d_model, size)
    tensor, between = accumulate * tensor, accumulate * between
    total = data + tensor + between
    seconds = None if bandwidth is None else total / bandwidth
    return Traffic(
        layout.ranks,
        1 / (t * p),
        data,
        tensor,
        between,
        bubble(p, m),
        idle_share(p, m),
        m,
        min(p, m),
        seconds,
    )


def _depth(config: ModelConfig) -> int:
    return config.n_layers + (config.decoder_layers if config.kind == "encoder-decoder" else 0)
