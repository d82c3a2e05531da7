"""A plan in a few plain lines: size, time, memory, quality, and where the model can go."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.analysis.forecast import duration
from polyhead.core.i18n import tr
from polyhead.export.targets import describe_targets
from polyhead.planning.answer import Plan
from polyhead.planning.quality import OURS, UNITS, Measured
from polyhead.planning.report import scaled

PROCESS = 0.3e9  # bytes that Python and torch hold themselves (docs/cost.md)


def summarize(plan: Plan) -> Iterator[str]:
    """Four lines about cost and quality, one about exports, and the notes."""
    yield tr("size: {size}", size=_size(plan))
    yield tr("time on this machine now: {time}", time=_time(plan))
    yield tr("memory: {memory}", memory=_memory(plan))
    yield tr("quality: {quality}", quality=_quality(plan))
    if plan.exports:
        yield describe_targets(plan.exports)
    yield from (tr("note: {note}", note=note) for note in plan.notes)


def _size(plan: Plan) -> str:
    return tr(
        "{count:,} parameters, {size}B in fp32", count=plan.parameters, size=scaled(4 * plan.parameters)
    )


def _time(plan: Plan) -> str:
    time = plan.time
    if time is None:
        return tr("not measured")
    if time.run is None or plan.steps is None:
        return tr("{seconds:.3g} s an update; how many there will be is not known", seconds=time.update)
    return tr(
        "{duration} for {steps:,} updates of {seconds:.3g} s, not counting evaluations and checkpoints",
        duration=duration(time.run),
        steps=plan.steps,
        seconds=time.update,
    )


def _memory(plan: Plan) -> str:
    if plan.memory.total is None:
        return tr("not known of these parts")
    needed = tr(
        "training holds {tensors}B of tensors at its peak, Python and torch about {process}B besides",
        tensors=scaled(plan.memory.total),
        process=scaled(PROCESS),
    )
    if not plan.machine:
        return needed
    return tr("{needed}; this machine has {machine}B", needed=needed, machine=scaled(plan.machine))


def _quality(plan: Plan) -> str:
    if not plan.text:
        return tr("not known without the text")
    if not plan.measured:
        return tr("no measurement of this size")
    return tr("corpora of this size gave {scores}", scores="; ".join(map(describe_measured, plan.measured)))


def describe_measured(one: Measured) -> str:
    """``BLEU 40.88 (Multi30k en-de, 29,000 pairs, 2.6 M parameters)``."""
    unit = UNITS.get(one.task)
    facts = [
        one.corpus,
        tr(unit, count=one.size) if unit else f"{scaled(one.size)}B",
        *([tr("{count} parameters", count=scaled(one.parameters).strip())] if one.parameters else []),
        *([] if one.source == OURS else [one.source]),
    ]
    return f"{one.score} ({', '.join(facts)})"
