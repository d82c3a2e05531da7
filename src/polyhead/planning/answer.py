"""What a plan says, in numbers: what is printed and what programs read."""

from __future__ import annotations

from typing import Any, NamedTuple

from polyhead.analysis import sizes
from polyhead.analysis.cost.communication import Traffic
from polyhead.analysis.cost.decoding import Held
from polyhead.analysis.cost.memory import Memory
from polyhead.analysis.cost.work import Load, Work
from polyhead.planning.probe import Speed
from polyhead.planning.quality import Measured
from polyhead.registry import Choice


class Operations(NamedTuple):
    """Floating-point operations. Padding counts; element-wise functions do not."""

    parts: list[Work]  # of a forward pass over the largest batch
    forward: int
    unseen: int  # of these, of pairs that a mask hides
    step: float  # a mean update of training
    rule: float  # the same by 6 N a token
    run: float | None
    times: int  # a forward pass that an update costs
    teachers: float  # of step, what teachers need


class Decoding(NamedTuple):
    """The cost of decoding after ``context`` tokens."""

    context: int
    source: int
    token: int | None  # operations for one more token
    rows: int
    caches: list[Held]  # of so many rows, the chosen one first
    source_bytes: int  # kept of a source, for every row
    heads: dict[int, int]  # bytes a token by n_kv_heads


class Time(NamedTuple):
    """Predicted from a probe: evaluations, checkpoints and the making of the tokenizer are left out."""

    update: float
    tokens_per_s: float  # labels
    epoch: float | None
    run: float | None
    speeds: list[Speed]
    probed: int  # updates that were timed


class Plan(NamedTuple):
    """What a design will cost."""

    name: str
    parameters: int
    active: int  # of them, what a token passes
    sizes: list[sizes.Part]
    precision: str
    largest: Load
    mean: Load  # its numbers are rounded means
    accumulate: int
    optimizer: Choice
    batches: float | None  # in an epoch
    labels: float  # in a mean update
    steps: int | None
    text: dict[str, float]
    operations: Operations
    memory: Memory
    memory_literature: float | None
    decoding: Decoding | None
    traffic: Traffic | None
    time: Time | None  # without a probe: None
    notes: list[str]
    machine: int  # bytes of memory of this machine, 0 where it does not say
    measured: list[Measured]  # what was measured on corpora of about this size
    exports: dict[str, str]  # for each format what stands in the way there; empty where nothing does

    def to_json(self) -> dict[str, Any]:
        """For programs: operations as they are, bytes, seconds."""
        return _plain(self)


def _plain(x: Any) -> Any:
    if isinstance(x, Choice):
        return x.written()
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return {name: _plain(value) for name, value in x._asdict().items()}
    if isinstance(x, dict):
        return {str(name): _plain(value) for name, value in x.items()}
    return [_plain(y) for y in x] if isinstance(x, list | tuple) else x
