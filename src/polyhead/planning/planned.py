"""A plan: what a recipe, or a model alone, costs."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polyhead.analysis import sizes
from polyhead.analysis.cost import decoding as cost_of_decoding
from polyhead.analysis.cost.communication import Layout, traffic
from polyhead.analysis.cost.flops import ADAPTED, TRAINING, forward
from polyhead.analysis.cost.memory import literature, training_memory, weights
from polyhead.analysis.cost.weightless import counted
from polyhead.analysis.cost.work import Load, Unknown, Work
from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.fast.memory import machine_memory
from polyhead.planning import probe as probes
from polyhead.planning.answer import Decoding, Operations, Plan, Time
from polyhead.planning.probe import Clock
from polyhead.planning.subject import Subject, alone, load_of, opened, unread
from polyhead.planning.texts import missing, open_texts
from polyhead.recipe import Recipe, load_recipe
from polyhead.registry import CACHE, Choice
from polyhead.run import Run
from polyhead.train.learned import prepare
from polyhead.train.precision import resolve
from polyhead.train.start import begin, open_start, resolved

SECONDS = 20.0  # that the probe of training may take, if three updates are not longer
SPARE = 0.8  # of the machine's memory, that a probe may fill


def plan(
    design: Recipe | ModelConfig | str | Path,
    *,
    probe: bool = True,
    rows: int | None = None,
    length: int | None = None,
    tokens: float | None = None,
    context: int | None = None,
    decode_rows: Sequence[int] = (1, 32),
    layout: Layout | None = None,
    seconds: float = SECONDS,
    clock: Clock = time.perf_counter,
) -> Plan:
    """What a recipe (or its file), or a model alone, will cost.

    ``rows`` and ``length`` are the batch of a model alone and ``tokens`` what it learns from; a recipe says its own. ``context`` are the tokens that a
    decoding row has, ``layout`` how training is spread. Without ``probe`` nothing is run, and no time is told.
    """
    if isinstance(design, ModelConfig):
        return _of(
            alone(design, rows, length, tokens), [], probe, context, decode_rows, layout, seconds, clock, {}
        )
    recipe = load_recipe(design) if isinstance(design, str | Path) else design
    if rows or length or tokens:
        raise UserError(
            "rows, length and tokens are for a model alone; a recipe has train.max_tokens, data.max_len and train.steps"
        )
    origin = open_start(recipe)
    recipe, notes = resolved(recipe, origin), []
    if gone := missing(recipe):
        notes.append(
            f"{', '.join(gone)}: not found, so batches are the largest that may be, and epochs are not known"
        )
        subject = _fitting(unread(recipe, origin, notes), recipe, origin)
        return _of(subject, notes, probe, context, decode_rows, layout, seconds, clock, {})
    with tempfile.TemporaryDirectory(prefix="polyhead-plan-") as folder:
        texts = open_texts(recipe, origin, Path(folder))
        facts = {"lines": texts.lines, "bytes": texts.nbytes, "looked_at": round(texts.share, 4)}
        subject = _fitting(opened(recipe, texts), recipe, origin)
        return _of(subject, texts.notes, probe, context, decode_rows, layout, seconds, clock, facts)


def _fitting(subject: Subject, recipe: Recipe, origin: Run | None) -> Subject:
    """The same, or a UserError where training could not begin with the weights of ``origin``."""
    if origin and recipe.start:
        begin(sizes.hollow(subject.config), origin, recipe.start.every, recipe.train.adapt)
    return subject


def _of(
    subject: Subject,
    notes: list[str],
    probing: bool,
    context: int | None,
    decode_rows: Sequence[int],
    layout: Layout | None,
    seconds: float,
    clock: Clock,
    facts: dict[str, float],
) -> Plan:
    config, train, largest = subject.config, subject.train, subject.largest
    if context is not None and not 1 <= context <= config.max_len:
        raise UserError(f"context is {context}, wanted 1 to max_len ({config.max_len}) of the model")
    precision = resolve(train.precision, torch.device("cpu"))
    parts = sizes.parts(config)
    parameters = sum(part.total for part in parts)
    loads = subject.loads
    works, known = _works(config, largest, notes)
    spent = [known(load) for load in loads]
    times = ADAPTED if train.adapt else TRAINING
    passes = train.accumulate * sum(spent) / len(spent)
    teaching = train.accumulate * _teaching(subject, notes)
    step = times * passes + teaching
    steps = subject.steps
    both = 2 if config.kind == "encoder-decoder" else 1
    active = sizes.active(config)
    rule = 6 * active * train.accumulate * sum(load.tokens for load in loads) / len(loads) / both
    memory = training_memory(
        config,
        largest,
        train.optimizer,
        precision=precision,
        ema=bool(train.ema),
        prepare=lambda model: prepare(model, train),
    )._replace(teachers=sum(weights(teacher.run.model) for teacher in subject.teachers))
    if memory.activations is None:
        notes.append("activations are not known: a part keeps what is only known when it is there")
    forward_flops = known(largest)
    operations = Operations(
        works,
        forward_flops,
        sum(w.times * w.unseen for w in works),
        step,
        rule,
        None if steps is None else step * steps,
        times,
        teaching,
    )
    sent = None
    if layout is not None:
        layout = layout._replace(activation_bytes=4 if precision == "fp32" else 2)
        sent = traffic(config, largest, memory.gradients // 4, layout)
    taken = None
    if probing:
        need = memory.total or 0
        if need > SPARE * (machine_memory() or math.inf):
            notes.append(
                f"not probed: training needs {need / 1e9:,.0f} GB, more than this machine has to spare"
            )
        elif subject.some:
            taken = _time(subject, spent, passes, steps, context, decode_rows, seconds, clock)
    return Plan(
        subject.name, parameters, active, parts, precision, largest, subject.mean, train.accumulate, train.optimizer, subject.batches,
        subject.labels,
        steps, facts, operations, memory, literature(config, largest) if config.kind != "encoder-decoder" else None,
        _decoding(subject, context, decode_rows, notes), sent, taken, notes,
    )  # fmt: skip


def _works(config: ModelConfig, largest: Load, notes: list[str]) -> tuple[list[Work], Any]:
    """The works of the largest batch, and what gives the operations of a forward pass over any."""
    try:
        return forward(config, largest), lambda load: sum(work.total for work in forward(config, load))
    except Unknown as unknown:
        part = str(unknown)
    try:
        total = counted(config, largest)
    except Unknown as unknown:
        raise UserError(
            f"the operations of this model are not known: no formula for {part}, and {unknown}"
        ) from unknown
    notes.append(
        f"there is no formula for {part}: operations are counted by torch, and the head counts for every token"
    )
    works = [Work("all parts, counted", 1, total, "")]
    return works, lambda load: total * load.tokens // largest.tokens


def _teaching(subject: Subject, notes: list[str]) -> float:
    """The operations of all teachers, who pass forward alone, in a mean batch."""
    total = 0
    for i, teacher in enumerate(subject.teachers):
        config = teacher.run.config
        loads = [load_of(config, teacher.task, batch.theirs[i]) for _, _, batch in subject.some]
        _, known = _works(config, loads[0], notes)
        total += sum(map(known, loads))
    return total / max(1, len(subject.some))


def _time(
    subject: Subject, spent: list[int], passes: float, steps: int | None, context: int | None,
    decode_rows: Sequence[int], seconds: float, clock: Clock,
) -> Time:  # fmt: skip
    """Predicted from a few updates and steps of decoding; ``passes`` are the operations of forward in a mean update."""
    found = probes.learning(
        subject.config,
        subject.task,
        subject.train,
        [batch for _, _, batch in subject.some],
        spent,
        seconds,
        clock,
    )
    update = found.of(passes)
    epoch = None if subject.batches is None else update * subject.batches / subject.train.accumulate
    speeds = []
    if subject.config.kind != "encoder":
        at = (context or subject.context) // 2
        speeds = [
            probes.decoding(subject.config, rows, at, subject.mean.source, subject.cache)
            for rows in decode_rows
        ]
    return Time(
        update,
        subject.labels / update,
        epoch,
        None if steps is None else update * steps,
        speeds,
        len(found.seconds),
    )


def _decoding(
    subject: Subject, context: int | None, rows: Sequence[int], notes: list[str]
) -> Decoding | None:
    config = subject.config
    if config.kind == "encoder":
        return None
    context = context or subject.context
    source = context if config.kind == "encoder-decoder" else 0
    shape = cost_of_decoding.cache_shape(config)
    chosen = subject.cache or Choice("static" if shape.keyed else "state")
    others = [Choice(name) for name in CACHE.names() if name != chosen.name]
    caches = [
        cost_of_decoding.held(choice, shape, max(rows, default=1), context) for choice in (chosen, *others)
    ]
    if caches[0].refused:
        notes.append(caches[0].refused)
    try:
        token: int | None = cost_of_decoding.token_flops(config, context, source, subject.cache)
        kept = cost_of_decoding.source_bytes(config, source) if source else 0
    except Unknown:
        token, kept = None, 0
    heads = cost_of_decoding.by_heads(config, len(shape.keyed)) if shape.keyed else {}
    return Decoding(
        context,
        source,
        token,
        max(rows, default=1),
        [held for held in caches if not held.refused],
        kept,
        heads,
    )
