"""A plan as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.analysis.cost.work import Load
from polyhead.analysis.forecast import duration
from polyhead.planning.answer import Plan

STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def details(plan: Plan) -> Iterator[str]:
    """What the summary does not say, a paragraph for each kind of cost."""
    learn = plan.memory.gradients // 4
    some = f", {learn:,} of them or beside them learn" if learn < plan.parameters else ""
    passed = f", {plan.active:,} of them for each token" if plan.active < plan.parameters else ""
    yield f"{plan.name}: {plan.parameters:,} parameters{passed}{some}, training in {plan.precision}"
    if plan.text:
        size, per = scaled(plan.text["bytes"]) + "B", f"{plan.batches:,.0f} batches an epoch"
        yield f"text: {plan.text['lines']:,.0f} lines, {size}; {per}"
    several = f"; {plan.accumulate} in an update" if plan.accumulate > 1 else ""
    mean, most = _batch(plan.mean), _batch(plan.largest)
    yield f"batch: {most}{several}" if mean == most else f"batch: {mean} on the mean, {most} at most{several}"
    for part in (_operations, _memory, _decoding, traffic, _time):
        found = list(part(plan))
        if found:
            yield ""
            yield from found


def scaled(x: float) -> str:
    """1234567 -> 1.23 M: three digits and a letter."""
    for step, letter in STEPS:
        if abs(x) >= 0.9995 * step:
            return f"{x / step:.3g} {letter}" if x < 1e18 else f"{x:.3g} "
    return f"{x:.3g} "


def _batch(load: Load) -> str:
    both = f"({load.source} + {load.length})" if load.source else str(load.length)
    return f"{load.rows} rows x {both} tokens, {load.labels:,} labels"


def _operations(plan: Plan) -> Iterator[str]:
    found = plan.operations
    yield "floating-point operations, forward, the largest batch"
    width = max(len(work.name) for work in found.parts)
    for work in found.parts:
        times = f"{work.times} x {scaled(work.each)}" if work.times > 1 else ""
        share = work.total / found.forward
        yield f"  {work.name:<{width}}  {scaled(work.total):>8}  {share:>6.1%}  {times:>13}  {work.formula}".rstrip()
    hidden = f"; {scaled(found.unseen)} of them in pairs that the mask hides" if found.unseen else ""
    yield f"  {'all':<{width}}  {scaled(found.forward):>8}{hidden}"
    each = found.step / max(plan.labels, 1)
    beside = f" and {scaled(found.teachers)}FLOPs of teachers" if found.teachers else ""
    yield f"training: {scaled(found.step)}FLOPs an update ({found.times} x forward{beside}), {scaled(each)}FLOPs a label; 6N says {scaled(found.rule)}FLOPs"
    if found.run is not None:
        assert plan.steps is not None
        yield f"          {found.run:.3g} FLOPs in {plan.steps:,} updates; 6N says {found.rule * plan.steps:.3g}"


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    yield "memory of training, at most"
    yield f"  weights     {scaled(memory.weights):>7}B"
    yield f"  gradients   {scaled(memory.gradients):>7}B"
    yield f"  optimizer   {scaled(memory.optimizer):>7}B  {plan.optimizer.name}"
    if memory.average:
        yield f"  average     {scaled(memory.average):>7}B"
    if memory.activations is not None:
        formula = plan.memory_literature
        said = (
            f"  of the largest batch; sbh(34 + 5as/h) says {scaled(formula)}B"
            if formula
            else "  of the largest batch"
        )
        yield f"  activations {scaled(memory.activations):>7}B{said}"
    yield f"  loss        {scaled(memory.loss):>7}B"
    if memory.teachers:
        yield f"  teachers    {scaled(memory.teachers):>7}B"
    if memory.total is not None:
        yield f"  all         {scaled(memory.total):>7}B"


def _decoding(plan: Plan) -> Iterator[str]:
    found = plan.decoding
    if found is None:
        return
    source = f" and a source of {found.source}" if found.source else ""
    token = "" if found.token is None else f": {scaled(found.token)}FLOPs a token"
    yield f"decoding with {found.context} tokens before{source}{token}"
    if found.caches:
        yield f"  {'cache':<10} {f'{found.rows} rows':>10}  a token more"
    for held in found.caches:
        yield f"  {held.cache.name:<10} {scaled(held.nbytes):>9}B  {held.per_token:,.0f} B"
    if found.source_bytes:
        yield f"  {'source':<10} {scaled(found.source_bytes):>9}B  a row, beside the cache"
    if len(found.heads) > 1:
        own = ", ".join(f"{n}: {scaled(nbytes)}B" for n, nbytes in found.heads.items())
        yield f"  keys and values a token by n_kv_heads, {own}"


def traffic(plan: Plan) -> Iterator[str]:
    """What ranks send each other; nothing where a single one trains."""
    sent = plan.traffic
    if sent is None:
        return
    yield "sent by a rank in one update, predicted by formula (trainings here share out the data alone)"
    memory = plan.memory
    model = memory.weights + memory.gradients + memory.optimizer + memory.average
    yield f"  {sent.ranks} ranks hold {scaled(model * sent.share)}B of weights, gradients and optimizer each"
    yield f"  data parallel   {scaled(sent.data)}B"
    yield f"  tensor parallel {scaled(sent.tensor)}B"
    yield f"  pipeline        {scaled(sent.pipeline)}B"
    yield f"  bubble          {sent.idle:.1%} of the time, {sent.bubble:.1%} of the work"
    yield f"  activations of  {sent.held_gpipe} micro-batches with GPipe, {sent.held_1f1b} with 1F1B"
    if sent.seconds is not None:
        yield f"  sending         {sent.seconds:.3g} s, if nothing overlaps"


def _time(plan: Plan) -> Iterator[str]:
    time = plan.time
    if time is None:
        return
    yield f"time on this machine, predicted from {time.probed} updates; not counting evaluations and checkpoints"
    epoch = "" if time.epoch is None else f"; an epoch {duration(time.epoch)}"
    run = "" if time.run is None else f"; {plan.steps:,} updates {duration(time.run)}"
    yield f"  an update {time.update:.3g} s, {time.tokens_per_s:,.0f} labels/s{epoch}{run}"
    for speed in time.speeds:
        yield f"  decoding {speed.rows} row{'s' * (speed.rows > 1)} at {speed.context} tokens: {speed.tokens_per_s:,.0f} tokens/s"
