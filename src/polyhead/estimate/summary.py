"""Summary of an estimate in a few lines: size, time, memory, quality and export formats."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.core.i18n import tr
from polyhead.estimate.expected_quality import CORPUS_UNITS, OWN_RESULTS, Measurement
from polyhead.estimate.report import Estimate, format_si
from polyhead.export.targets import describe_targets
from polyhead.viz.eta_model import format_seconds

_PROCESS_BYTES = 0.3e9  # bytes used by Python and torch themselves (docs/cost.md)


def summarize(estimate: Estimate) -> Iterator[str]:
    """Yield four lines about cost and quality, one about exports, and the notes."""
    yield tr("size: {size}", size=_format_size(estimate))
    yield tr("time on this machine now: {time}", time=_format_time(estimate))
    yield tr("memory: {memory}", memory=_format_memory(estimate))
    yield tr("quality: {quality}", quality=_format_quality(estimate))
    if estimate.exports:
        yield describe_targets(estimate.exports)
    yield from (tr("note: {note}", note=note) for note in estimate.notes)


def _format_size(estimate: Estimate) -> str:
    return tr(
        "{count:,} parameters, {size}B in fp32",
        count=estimate.parameters,
        size=format_si(4 * estimate.parameters),
    )


def _format_time(estimate: Estimate) -> str:
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


def _format_memory(estimate: Estimate) -> str:
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


def _format_quality(estimate: Estimate) -> str:
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
