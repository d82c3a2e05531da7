"""A plan: what a recipe, or a model alone, costs."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from polyhead.analysis import sizes
from polyhead.analysis.cost.communication import Layout, traffic
from polyhead.analysis.cost.decoding import by_heads, cache_shape, held, source_bytes, token_flops
from polyhead.analysis.cost.flops import forward, times_forward
from polyhead.analysis.cost.memory import Memory, literature, training_memory, weights
from polyhead.analysis.cost.weightless import counted
from polyhead.analysis.cost.work import Load, Unknown, Work
from polyhead.calls import told
from polyhead.config import ModelConfig
from polyhead.errors import UserError, check_whole, show
from polyhead.export.targets import find_obstacles, sample_tokenizer
from polyhead.fast.memory import machine_memory
from polyhead.planning.answer import Decoding, Operations, Plan, Time
from polyhead.planning.probe import Clock, decoding, learning
from polyhead.planning.quality import measured_near
from polyhead.planning.subject import Subject, alone, load_of, opened, unread
from polyhead.planning.texts import missing, open_texts
from polyhead.presets import PRESETS
from polyhead.recipe import Recipe, load_recipe
from polyhead.registry import CACHE, Choice
from polyhead.run import Run
from polyhead.train.learned import prepare
from polyhead.train.precision import Format, resolve
from polyhead.train.start import begin, open_start, resolved

SECONDS = 20.0  # that the probe of training may take, if three updates are not longer
SPARE = 0.8  # of the machine's memory, that a probe may fill


@told
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
    for name, count in {"rows": rows, "length": length, "context": context}.items():
        if count is not None:
            check_whole(name, count, None if name == "context" else 1)
    if not isinstance(decode_rows, Sequence) or not all(
        isinstance(one, int) and one >= 1 for one in decode_rows
    ):
        raise UserError(
            f"decode_rows is {show(decode_rows)}; wanted a list of whole numbers, 1 or more, as [1, 32]"
        )
    if tokens is not None and not (isinstance(tokens, int | float) and tokens > 0):
        raise UserError(f"tokens is {show(tokens)}; wanted a number above 0, as 300e9")
    with tempfile.TemporaryDirectory(prefix="polyhead-plan-") as folder:
        subject = _subject(design, rows, length, tokens, Path(folder))
        config, train, notes = subject.config, subject.train, subject.notes
        if context is not None and not 1 <= context <= config.max_len:
            raise UserError(f"context is {context}, wanted 1 to max_len ({config.max_len}) of the model")
        precision = resolve(train.precision, torch.device("cpu"))
        works, flops = _works(config, subject.largest, notes)
        passes = [flops(load) for load in subject.loads]
        active = sizes.active(config)
        operations = _operations(subject, works, passes, active)
        memory = _memory(subject, precision)
        sent = None
        if layout is not None:
            layout = layout._replace(activation_bytes=4 if precision == "fp32" else 2)
            sent = traffic(config, subject.largest, memory.gradients // 4, layout, train.accumulate)
        taken = None
        if probe and _has_room(memory, notes) and subject.some:
            taken = _time(subject, passes, context, decode_rows, seconds, clock)
        parts = sizes.parts(config)
        formula = literature(config, subject.largest) if config.kind != "encoder-decoder" else None
        return Plan(
            name=subject.name,
            parameters=sum(part.total for part in parts),
            active=active,
            sizes=parts,
            precision=precision,
            largest=subject.largest,
            mean=subject.mean,
            accumulate=train.accumulate,
            optimizer=train.optimizer,
            batches=subject.batches,
            labels=subject.labels,
            steps=subject.steps,
            text=subject.text,
            operations=operations,
            memory=memory,
            memory_literature=formula,
            decoding=_decoding(subject, context, max(decode_rows, default=1)),
            traffic=sent,
            time=taken,
            notes=notes,
            machine=machine_memory(),
            measured=measured_near(subject.learns, subject.text),
            exports=dict(subject.exports),
        )


def _subject(
    design: Recipe | ModelConfig | str | Path,
    rows: int | None,
    length: int | None,
    tokens: float | None,
    folder: Path,
) -> Subject:
    """What is planned, with its text in the folder; a UserError where training could not begin."""
    if isinstance(design, ModelConfig):
        return alone(design, rows, length, tokens)._replace(exports=find_obstacles(design))
    recipe = _recipe(design)
    if rows or length or tokens:
        raise UserError(
            "rows, length and tokens are for a model alone; a recipe has train.max_tokens, data.max_len and train.steps"
        )
    origin = open_start(recipe)
    recipe = resolved(recipe, origin)
    if gone := missing(recipe):
        subject = unread(recipe, origin, gone)
    else:
        subject = opened(recipe, open_texts(recipe, origin, folder))
    if origin and recipe.start:
        begin(sizes.hollow(subject.config), origin, recipe.start.every, recipe.train.adapt)
    tokenizer = origin.tokenizer if origin else sample_tokenizer(recipe.tokenizer)
    exports = find_obstacles(subject.config, tokenizer, origin.family if origin else None)
    return subject._replace(learns=recipe.task.name, exports=exports)


def _recipe(design: object) -> Recipe:
    """The recipe that is given or is in a file; what else comes is a UserError."""
    if isinstance(design, Recipe):
        return design
    if isinstance(design, str) and design in PRESETS and not Path(design).exists():
        raise UserError(
            f"{design!r} is the name of a model; for its plan give ModelConfig(preset={design!r}, vocab_size=...)"
        )
    if isinstance(design, str | Path):
        return load_recipe(design)
    ways = {
        Mapping: "; ModelConfig(**mapping) makes one",
        Run: "; give its recipe or its config",
        torch.nn.Module: "; give its config",
    }
    way = next((hint for kind, hint in ways.items() if isinstance(design, kind)), "")
    raise UserError(
        f"plan wants a Recipe, the file of one, or a ModelConfig, got {type(design).__name__}{way}"
    )


def _operations(subject: Subject, works: list[Work], passes: list[int], active: int) -> Operations:
    """Of a forward pass, an update and the run; ``passes`` are the operations of forward over each of some batches."""
    train, loads, steps = subject.train, subject.loads, subject.steps
    times = times_forward(train.adapt is not None)
    teaching = train.accumulate * _teaching(subject)
    step = times * (train.accumulate * sum(passes) / len(passes)) + teaching
    both = 2 if subject.config.kind == "encoder-decoder" else 1
    return Operations(
        parts=works,
        forward=sum(work.total for work in works),
        unseen=sum(work.times * work.unseen for work in works),
        step=step,
        rule=6 * active * train.accumulate * sum(load.tokens for load in loads) / len(loads) / both,
        run=None if steps is None else step * steps,
        times=times,
        teachers=teaching,
    )


def _memory(subject: Subject, precision: Format) -> Memory:
    """Of the largest batch, and of the teachers."""
    train = subject.train
    memory = training_memory(
        subject.config,
        subject.largest,
        train.optimizer,
        precision=precision,
        ema=bool(train.ema),
        prepare=lambda model: prepare(model, train),
    )
    if memory.activations is None:
        subject.notes.append("activations are not known: a part keeps what is only known when it is there")
    return memory._replace(teachers=sum(weights(teacher.run.model) for teacher in subject.teachers))


def _has_room(memory: Memory, notes: list[str]) -> bool:
    """Whether this machine can train a few steps; if not, a note says so."""
    need = memory.total or 0
    if need <= SPARE * (machine_memory() or math.inf):
        return True
    notes.append(f"not probed: training needs {need / 1e9:,.0f} GB, more than this machine has to spare")
    return False


def _works(config: ModelConfig, largest: Load, notes: list[str]) -> tuple[list[Work], Callable[[Load], int]]:
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


def _teaching(subject: Subject) -> float:
    """The operations of all teachers, who pass forward alone, in a mean batch."""
    total = 0
    for i, teacher in enumerate(subject.teachers):
        config = teacher.run.config
        loads = [load_of(config, teacher.task, batch.theirs[i]) for _, _, batch in subject.some]
        _, flops = _works(config, loads[0], subject.notes)
        total += sum(map(flops, loads))
    return total / max(1, len(subject.some))


def _time(
    subject: Subject,
    passes: list[int],
    context: int | None,
    decode_rows: Sequence[int],
    seconds: float,
    clock: Clock,
) -> Time:
    """Predicted from a few updates and steps of decoding; ``passes`` are the operations of forward over each batch."""
    train, config, batches, steps = subject.train, subject.config, subject.batches, subject.steps
    some = [batch for _, _, batch in subject.some]
    found = learning(config, subject.task, train, some, passes, seconds, clock)
    update = found.of(train.accumulate * sum(passes) / len(passes))
    speeds = []
    if config.kind != "encoder":
        at = (context or subject.context) // 2
        speeds = [decoding(config, rows, at, subject.mean.source, subject.cache) for rows in decode_rows]
    return Time(
        update=update,
        tokens_per_s=subject.labels / update,
        epoch=None if batches is None else update * batches / train.accumulate,
        run=None if steps is None else update * steps,
        speeds=speeds,
        probed=len(found.seconds),
    )


def _decoding(subject: Subject, context: int | None, rows: int) -> Decoding | None:
    """Going on from that many tokens, so many rows together; None for an encoder."""
    config = subject.config
    if config.kind == "encoder":
        return None
    context = context or subject.context
    source = context if config.kind == "encoder-decoder" else 0
    shape = cache_shape(config)
    chosen = subject.cache or Choice("static" if shape.keyed else "state")
    others = [Choice(name) for name in CACHE.names() if name != chosen.name]
    caches = [held(choice, shape, rows, context) for choice in (chosen, *others)]
    if caches[0].refused:
        subject.notes.append(caches[0].refused)
    try:
        token: int | None = token_flops(config, context, source, subject.cache)
        kept = source_bytes(config, source) if source else 0
    except Unknown:
        token, kept = None, 0
    return Decoding(
        context=context,
        source=source,
        token=token,
        rows=rows,
        caches=[cache for cache in caches if not cache.refused],
        source_bytes=kept,
        heads=by_heads(config, len(shape.keyed)) if shape.keyed else {},
    )
