"""The result of an estimate, and its format as text: a summary, and details."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyhead.core.array_types import is_named_tuple
from polyhead.core.choice import Choice
from polyhead.core.i18n import tr
from polyhead.cost import parameter_count
from polyhead.cost.communication import ParallelLayout, Recompute, Traffic
from polyhead.cost.decoding import CacheCost
from polyhead.cost.hardware import Hardware
from polyhead.cost.memory import TrainingMemory
from polyhead.cost.rank_cost import RankMemory, RankTime
from polyhead.cost.workload import BatchShape, OpCount
from polyhead.estimate.benchmark import DecodingSpeed
from polyhead.estimate.expected_quality import CORPUS_UNITS, OWN_RESULTS, Measurement
from polyhead.export.targets import describe_targets
from polyhead.viz.plot import SI_PREFIXES
from polyhead.viz.run_record import format_seconds


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
    memory: dict[str, int]  # the most bytes at once of greedy decoding, by dtype of the packed weights


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
    if is_named_tuple(x):
        return {name: _to_plain(value) for name, value in x._asdict().items()}
    if isinstance(x, dict):
        return {str(name): _to_plain(value) for name, value in x.items()}
    return [_to_plain(y) for y in x] if isinstance(x, list | tuple) else x


_PROCESS_BYTES = 0.3e9  # bytes used by Python and torch themselves (docs/cost.md)
_SI_PREFIXES = ((1e15, "P"), *SI_PREFIXES, (1.0, ""))


def summarize(estimate: Estimate) -> Iterator[str]:
    """Yield four lines about cost and quality, one about exports, and the notes."""
    size = tr(
        "{count:,} parameters, {size}B in fp32",
        count=estimate.parameters,
        size=format_si(4 * estimate.parameters),
    )
    yield tr("size: {size}", size=size)
    yield tr("time on this machine now: {time}", time=_summarize_time(estimate))
    yield tr("memory: {memory}", memory=_summarize_memory(estimate))
    yield tr("quality: {quality}", quality=_summarize_quality(estimate))
    if estimate.exports:
        yield describe_targets(estimate.exports)
    yield from (tr("note: {note}", note=note) for note in estimate.notes)


def _summarize_time(estimate: Estimate) -> str:
    time = estimate.time
    if time is None:
        return tr("not measured")
    if time.run is None or estimate.steps is None:
        return tr("{seconds:.3g} s per update; the number of updates is unknown", seconds=time.update)
    return tr(
        "{duration} for {steps:,} updates of {seconds:.3g} s, not counting evaluations and checkpoints",
        duration=format_seconds(time.run),
        steps=estimate.steps,
        seconds=time.update,
    )


def _summarize_memory(estimate: Estimate) -> str:
    if estimate.memory.total is None:
        return tr("unknown for these components")
    needed = tr(
        "training holds {tensors}B of tensors at its peak, plus about {process}B for Python and torch",
        tensors=format_si(estimate.memory.total),
        process=format_si(_PROCESS_BYTES),
    )
    if not estimate.machine:
        return needed
    return tr("{needed}; this machine has {machine}B", needed=needed, machine=format_si(estimate.machine))


def _summarize_quality(estimate: Estimate) -> str:
    if not estimate.text:
        return tr("unknown without the text")
    if not estimate.measurements:
        return tr("no measurement of this size")
    return tr(
        "corpora of this size reached {scores}",
        scores="; ".join(map(describe_measurement, estimate.measurements)),
    )


def describe_measurement(measurement: Measurement) -> str:
    """``BLEU 40.88 (Multi30k en-de, 29,000 pairs, 2.6 M parameters)``."""
    unit = CORPUS_UNITS.get(measurement.task)
    facts = [
        measurement.corpus,
        tr(unit, count=measurement.size) if unit else f"{format_si(measurement.size)}B",
        *(
            [tr("{count} parameters", count=format_si(measurement.parameters).strip())]
            if measurement.parameters
            else []
        ),
        *([] if measurement.source == OWN_RESULTS else [measurement.source]),
    ]
    return f"{measurement.score} ({', '.join(facts)})"


def format_details(estimate: Estimate) -> Iterator[str]:
    """Yield the details of an estimate, a paragraph for each kind of cost."""
    learn = estimate.memory.gradients // 4
    trainable = f", {learn:,} trainable" if learn < estimate.parameters else ""
    active = f", {estimate.active:,} of them for each token" if estimate.active < estimate.parameters else ""
    yield (
        f"{estimate.name}: {estimate.parameters:,} parameters{active}{trainable}, training in "
        f"{estimate.precision}"
    )
    if estimate.text:
        size, batches = format_si(estimate.text["bytes"]) + "B", f"{estimate.batches:,.0f} batches per epoch"
        yield f"text: {estimate.text['lines']:,.0f} lines, {size}; {batches}"
    accumulation = f"; {estimate.accumulate} per update" if estimate.accumulate > 1 else ""
    mean, largest = _format_batch(estimate.mean), _format_batch(estimate.largest)
    yield (
        f"batch: {largest}{accumulation}"
        if mean == largest
        else f"batch: {mean} on average, {largest} at most{accumulation}"
    )
    for part in (_format_operations, _format_memory, _format_decoding, format_ranks, _format_time):
        lines = list(part(estimate))
        if lines:
            yield ""
            yield from lines


def format_si(x: float) -> str:
    """Format a number with three digits and an SI prefix: 1234567 -> 1.23 M."""
    for step, letter in _SI_PREFIXES:
        if abs(x) >= 0.9995 * step:
            return f"{x / step:.3g} {letter}" if x < 1e18 else f"{x:.3g} "
    return f"{x:.3g} "


def _format_batch(batch_shape: BatchShape) -> str:
    lengths = (
        f"({batch_shape.source} + {batch_shape.length})" if batch_shape.source else str(batch_shape.length)
    )
    return f"{batch_shape.rows} rows x {lengths} tokens, {batch_shape.labels:,} labels"


def _format_operations(estimate: Estimate) -> Iterator[str]:
    operations = estimate.operations
    yield "floating-point operations, forward pass, largest batch"
    width = max(len(work.name) for work in operations.parts)
    for work in operations.parts:
        times = f"{work.times} x {format_si(work.flops_each)}" if work.times > 1 else ""
        share = work.total / operations.forward
        yield (
            f"  {work.name:<{width}}  {format_si(work.total):>8}  {share:>6.1%}  {times:>13}  {work.formula}"
        ).rstrip()
    hidden = (
        f"; {format_si(operations.masked_flops)} of them in masked pairs" if operations.masked_flops else ""
    )
    yield f"  {'all':<{width}}  {format_si(operations.forward):>8}{hidden}"
    flops_per_label = operations.step / max(estimate.labels, 1)
    teachers = f" and {format_si(operations.teachers)}FLOPs of teachers" if operations.teachers else ""
    recomputed = (
        f", {format_si(operations.recomputation)}FLOPs recomputed" if operations.recomputation else ""
    )
    yield (
        f"training: {format_si(operations.step)}FLOPs per update ({operations.times} x "
        f"forward{teachers}{recomputed}), {format_si(flops_per_label)}FLOPs per label; 6N gives "
        f"{format_si(operations.rule)}FLOPs"
    )
    if operations.run is not None:
        assert estimate.steps is not None
        yield (
            f"          {operations.run:.3g} FLOPs in {estimate.steps:,} updates; 6N gives "
            f"{operations.rule * estimate.steps:.3g}"
        )


def _format_memory(estimate: Estimate) -> Iterator[str]:
    memory, formula = estimate.memory, estimate.memory_literature
    has_formula = formula and not memory.block_activations
    literature = f"; sbh(34 + 5as/h) gives {format_si(formula or 0)}B" if has_formula else ""
    yield "memory of training, at most"
    yield from _list_bytes(
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, ""),
        ("optimizer", memory.optimizer, estimate.optimizer.name),
        ("average", memory.average or None, ""),
        ("activations", memory.activations, f"of the largest batch{literature}"),
        ("recomputed", memory.block_activations or None, "one block in the backward pass"),
        ("loss", memory.loss, ""),
        ("teachers", memory.teachers or None, ""),
        ("at once", memory.total, "the peak"),
    )


def _list_bytes(*rows: tuple[str, float | None, str]) -> Iterator[str]:
    """Yield a line for each (label, bytes, note); none for None."""
    for label, nbytes, note in rows:
        if nbytes is not None:
            yield f"  {label:<11} {format_si(nbytes):>7}B  {note}".rstrip()


def _format_decoding(estimate: Estimate) -> Iterator[str]:
    decoding = estimate.decoding
    if decoding is None:
        return
    source = f" and a source of {decoding.source}" if decoding.source else ""
    token = "" if decoding.token is None else f": {format_si(decoding.token)}FLOPs per token"
    yield f"decoding with {decoding.context} tokens of context{source}{token}"
    if decoding.caches:
        yield f"  {'cache':<10} {f'{decoding.rows} rows':>10} per additional token"
    for cost in decoding.caches:
        yield f"  {cost.cache.name:<10} {format_si(cost.nbytes):>9}B  {cost.per_token:,.0f} B"
    if decoding.source_bytes:
        yield f"  {'source':<10} {format_si(decoding.source_bytes):>9}B  per row, in addition to the cache"
    by_dtype = ", ".join(f"{dtype}: {format_si(nbytes)}B" for dtype, nbytes in decoding.memory.items())
    yield f"  {decoding.rows} rows with the weights, {by_dtype}"
    if len(decoding.heads) > 1:
        by_heads = ", ".join(f"{n}: {format_si(nbytes)}B" for n, nbytes in decoding.heads.items())
        yield f"  keys and values per token by n_kv_heads, {by_heads}"


def format_ranks(estimate: Estimate) -> Iterator[str]:
    """Yield the traffic between ranks, and memory and time of one; nothing for this machine alone."""
    paragraphs = [list(part(estimate)) for part in (_format_traffic, _format_rank_memory, _format_rank_time)]
    for i, lines in enumerate(filter(None, paragraphs)):
        yield from ([""] if i else [])
        yield from lines


def _format_traffic(estimate: Estimate) -> Iterator[str]:
    traffic = estimate.traffic
    if traffic is None or traffic.ranks == 1:
        return
    backend = (estimate.rank.layout.backend if estimate.rank else None) or "nccl"
    yield f"sent per rank and update, at most, with {backend}, predicted by formula"
    memory = estimate.memory
    model = memory.weights + memory.gradients + memory.optimizer + memory.average
    yield (
        f"  {traffic.ranks} ranks hold {format_si(model * traffic.share)}B of weights, gradients and "
        "optimizer each"
    )
    yield f"  data parallel   {format_si(traffic.data)}B"
    if traffic.gather:
        yield f"  sharded weights {format_si(traffic.gather)}B"
    if traffic.context:
        yield f"  context parall. {format_si(traffic.context)}B"
    yield f"  tensor parallel {format_si(traffic.tensor)}B"
    yield f"  pipeline        {format_si(traffic.pipeline)}B"
    yield f"  bubble          {traffic.idle:.1%} of the time, {traffic.bubble:.1%} of the work"
    yield (
        f"  activations of  {traffic.held_gpipe} micro-batches with GPipe, {traffic.held_1f1b:.3g} with 1F1B"
    )
    if traffic.seconds is not None:
        yield f"  sending         {traffic.seconds:.3g} s, without overlap"


def _format_rank_memory(estimate: Estimate) -> Iterator[str]:
    rank = estimate.rank
    if rank is None:
        return
    memory, limit = rank.memory, ""
    if rank.hardware:
        fits = "of the" if (memory.peak or 0) <= rank.hardware.memory else "more than the"
        limit = f"{fits} {format_si(rank.hardware.memory)}B of {rank.hardware.name}"
    recompute = f", recompute {rank.recompute}" if rank.recompute != "none" else ""
    yield f"memory of a rank, at most{recompute}"
    yield from _list_bytes(
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, ""),
        ("optimizer", memory.optimizer, ""),
        ("average", memory.average or None, ""),
        ("gathered", memory.gather_buffers or None, "weights and gradients in use"),
        ("activations", memory.activations, ""),
        ("recomputed", memory.recompute_buffer or None, "activations of one block"),
        ("loss", memory.loss, ""),
        ("teachers", memory.teachers or None, ""),
        ("peak", memory.peak, limit),
    )


def _format_rank_time(estimate: Estimate) -> Iterator[str]:
    rank = estimate.rank
    if rank is None or rank.time is None or rank.hardware is None:
        return
    time = rank.time
    yield (
        f"time of an update on {rank.hardware.name}, {estimate.precision}, predicted by formula with "
        f"{rank.hardware.efficiency:.0%} of the peak"
    )
    yield f"  computation   {time.compute:>8.3g} s"
    exposed = {"tensor": time.tensor, "context": time.context, "data": time.data, "pipeline": time.pipeline}
    kinds = ", ".join(f"{kind} {seconds:.3g}" for kind, seconds in exposed.items() if seconds)
    yield f"  communication {time.exposed_communication:>8.3g} s  exposed{f': {kinds}' if kinds else ''}"
    if time.bubble:
        yield f"  bubble        {time.bubble:>8.3g} s"
    yield f"  optimizer     {time.optimizer:>8.3g} s"
    speed = f"{time.labels_per_s:,.0f} labels/s per rank, MFU {time.mfu:.1%}"
    yield f"  all           {time.total:>8.3g} s  {speed}"


def _format_time(estimate: Estimate) -> Iterator[str]:
    time = estimate.time
    if time is None:
        return
    yield (
        f"time on this machine, predicted from {time.timed_updates} updates; not counting evaluations and "
        "checkpoints"
    )
    epoch = "" if time.epoch is None else f"; per epoch {format_seconds(time.epoch)}"
    run = "" if time.run is None else f"; {estimate.steps:,} updates {format_seconds(time.run)}"
    yield f"  per update {time.update:.3g} s, {time.tokens_per_s:,.0f} labels/s{epoch}{run}"
    for speed in time.speeds:
        yield (
            f"  decoding {speed.rows} row{'s' * (speed.rows > 1)} at {speed.context} tokens: "
            f"{speed.tokens_per_s:,.0f} tokens/s"
        )
