"""The result of an estimate in numbers, for printing and for programs."""

from __future__ import annotations

from typing import Any, NamedTuple

from polyhead.core.choice import Choice
from polyhead.cost import parameter_count
from polyhead.cost.communication import ParallelLayout, Recompute, Traffic
from polyhead.cost.decoding import CacheCost
from polyhead.cost.hardware import Hardware
from polyhead.cost.memory import TrainingMemory
from polyhead.cost.rank_cost import RankMemory, RankTime
from polyhead.cost.workload import BatchShape, OpCount
from polyhead.estimate.benchmark import DecodingSpeed
from polyhead.estimate.expected_quality import Measurement


class FlopsEstimate(NamedTuple):
    """Floating-point operations, padding included, element-wise functions excluded."""

    parts: list[OpCount]  # of a forward pass over the largest batch
    forward: int
    masked_flops: int  # part of ``forward`` for (query, key) pairs that a mask hides
    step: float  # a mean optimizer step
    rule: float  # the same by the rule 6 N per token
    run: float | None
    times: int  # cost of an optimizer step in forward passes
    teachers: float  # part of ``step`` for teachers
    recomputation: float  # part of ``step`` for blocks that run again in the backward pass (train.recompute)


class DecodingEstimate(NamedTuple):
    """The cost of decoding after ``context`` tokens."""

    context: int
    source: int
    token: int | None  # operations for one more token
    rows: int
    caches: list[CacheCost]  # for ``rows`` rows, the selected one first
    source_bytes: int  # per row, for keys and values of the source
    heads: dict[int, int]  # bytes per token by n_kv_heads


class TimeEstimate(NamedTuple):
    """Times predicted from a benchmark, without evaluations, checkpoints and training of the tokenizer."""

    update: float  # seconds of an optimizer step
    tokens_per_s: float  # labels per second
    epoch: float | None
    run: float | None
    speeds: list[DecodingSpeed]
    timed_updates: int


class RankEstimate(NamedTuple):
    """Memory and time of one rank of a parallel layout, on ``hardware``."""

    layout: ParallelLayout
    recompute: Recompute
    hardware: Hardware | None
    memory: RankMemory
    time: RankTime | None  # None without hardware


class Estimate(NamedTuple):
    """The estimated cost of a design."""

    name: str
    parameters: int
    active: int  # parameters used per token
    sizes: list[parameter_count.ParameterGroup]
    precision: str
    largest: BatchShape
    mean: BatchShape  # rounded means
    accumulate: int
    optimizer: Choice
    batches: float | None  # in an epoch
    labels: float  # in a mean optimizer step
    steps: int | None
    text: dict[str, float]
    operations: FlopsEstimate
    memory: TrainingMemory
    memory_literature: float | None
    decoding: DecodingEstimate | None
    traffic: Traffic | None
    time: TimeEstimate | None  # None without a benchmark
    notes: list[str]
    machine: int  # bytes of memory of this machine, 0 if unknown
    measurements: list[Measurement]  # on corpora of about this size
    exports: dict[str, str]  # obstacle for each export format; "" if there is none
    rank: RankEstimate | None = None  # None without a layout, hardware and recomputation

    def to_json(self) -> dict[str, Any]:
        """As JSON types: operations as numbers, bytes, seconds."""
        return _to_plain(self)


def _to_plain(x: Any) -> Any:
    if isinstance(x, Choice):
        return x.to_config()
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return {name: _to_plain(value) for name, value in x._asdict().items()}
    if isinstance(x, dict):
        return {str(name): _to_plain(value) for name, value in x.items()}
    return [_to_plain(y) for y in x] if isinstance(x, list | tuple) else x
