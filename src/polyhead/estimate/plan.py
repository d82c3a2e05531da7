"""Estimate the cost of a recipe, or of a model alone."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from polyhead.config.model import ModelConfig
from polyhead.config.presets import PRESETS
from polyhead.config.recipe import Recipe, read_recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import (
    UserError,
    check_int,
    did_you_mean,
    format_value,
    prefix_errors,
    unknown_name_error,
)
from polyhead.core.registry import CACHE
from polyhead.core.strict_kwargs import strict_kwargs
from polyhead.cost import parameter_count
from polyhead.cost.communication import RECOMPUTE, ParallelLayout, Recompute, Traffic, estimate_traffic
from polyhead.cost.decoding import (
    bytes_by_kv_heads,
    cache_shape,
    count_source_bytes,
    estimate_decoding_memory,
    measure_cache,
    token_flops,
)
from polyhead.cost.fake_tensors import count_flops
from polyhead.cost.flops import count_forward, count_recomputed, update_flops_factor
from polyhead.cost.hardware import Hardware, get_hardware
from polyhead.cost.memory import (
    TrainingMemory,
    activation_bytes_formula,
    estimate_training_memory,
    model_bytes,
)
from polyhead.cost.rank_cost import (
    estimate_rank_memory,
    estimate_rank_time,
    micro_batch_shape,
    with_selective_recompute,
)
from polyhead.cost.workload import BatchShape, OpCount, UnknownFormulaError
from polyhead.estimate.benchmark import ClockFn, measure_decoding_speed, measure_update_times
from polyhead.estimate.expected_quality import find_measurements
from polyhead.estimate.inputs import (
    EstimateInputs,
    batch_shape_of,
    find_missing_files,
    inputs_with_data,
    inputs_without_data,
    model_inputs,
    open_data_sample,
)
from polyhead.estimate.report import DecodingEstimate, Estimate, FlopsEstimate, RankEstimate, TimeEstimate
from polyhead.export.targets import find_obstacles, make_sample_tokenizer
from polyhead.kernels.malloc_tuning import get_machine_memory
from polyhead.nn.validate_model import check_model
from polyhead.run.recipe import check_recipe
from polyhead.run.run import Run
from polyhead.train.init_from import inherit_settings, load_init_from, load_init_weights
from polyhead.train.precision import ResolvedPrecision, resolve_precision
from polyhead.train.trainable_parameters import prepare_trainable

_PROBE_SECONDS = 20.0  # time limit of the training benchmark, which runs at least three steps
_MAX_MEMORY_FRACTION = 0.8  # of the machine's memory that the benchmark may use


@strict_kwargs
def estimate(
    design: Recipe | ModelConfig | str | Path,
    *,
    probe: bool = True,
    batch_size: int | None = None,
    seq_len: int | None = None,
    train_tokens: float | None = None,
    context_len: int | None = None,
    decode_batch: Sequence[int] = (1, 32),
    layout: ParallelLayout | None = None,
    hardware: str | None = None,
    recompute: Recompute | None = None,
    seconds: float = _PROBE_SECONDS,
    clock: ClockFn = time.perf_counter,
) -> Estimate:
    """Estimate the cost of a recipe (or its file), or of a model alone.

    ``batch_size`` and ``seq_len`` are the batch shape of a model alone, ``train_tokens`` its number of
    training tokens; a recipe defines its own. ``context_len`` is the number of tokens of a row in decoding,
    ``decode_batch`` are the batch sizes, ``layout`` the parallelism of training. ``hardware`` (h100, h200,
    a100 or cpu) adds the time of a rank on it, ``recompute`` (none, selective, blocks) selects what is
    recomputed there, by default ``train.recompute``. ``seconds`` limits the benchmark; without ``probe``
    nothing is run, and no time on this machine is estimated.
    """
    for name, count in {"batch_size": batch_size, "seq_len": seq_len, "context_len": context_len}.items():
        if count is not None:
            check_int(name, count, None if name == "context_len" else 1)
    if not isinstance(decode_batch, Sequence) or not all(
        isinstance(batch_size, int) and batch_size >= 1 for batch_size in decode_batch
    ):
        raise UserError(
            f"decode_batch is {format_value(decode_batch)}; expected a list of integers, 1 or more, "
            "e.g. [1, 32]"
        )
    for name, number, example in (("train_tokens", train_tokens, "300e9"), ("seconds", seconds, "20")):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if number is not None and not (is_number and 0 < number < math.inf):
            raise UserError(f"{name} is {format_value(number)}; expected a number above 0, e.g. {example}")
    if layout is not None and not isinstance(layout, ParallelLayout):
        raise UserError(f"layout is {format_value(layout)}; expected a ParallelLayout")
    if recompute is not None and recompute not in RECOMPUTE:
        raise unknown_name_error("recompute", recompute, RECOMPUTE)
    accelerator = None if hardware is None else get_hardware(hardware)
    with tempfile.TemporaryDirectory(prefix="polyhead-plan-") as folder:
        subject = _make_inputs(design, batch_size, seq_len, train_tokens, Path(folder))
        config, train, notes = subject.config, subject.train, subject.notes
        if context_len is not None and not 1 <= context_len <= config.max_len:
            raise UserError(
                f"context_len is {context_len}, expected 1 to max_len ({config.max_len}) of the model"
            )
        precision = resolve_precision(train.precision, torch.device("cpu"))
        if accelerator and train.precision == "auto":
            precision = "bf16"  # the fastest of every row of the table
        works, flops = _count_ops(config, subject.largest_batch, notes)
        passes = [flops(load) for load in subject.batch_shapes]
        active = parameter_count.count_active_parameters(config)
        operations = _estimate_operations(subject, works, passes, active)
        memory = _estimate_memory(subject, precision, accelerator)
        traffic, rank = None, None
        if layout is not None or accelerator or recompute:
            rank, traffic = _estimate_rank(
                subject,
                layout or ParallelLayout(),
                accelerator,
                recompute or train.recompute,
                precision,
                works,
            )
        time_estimate = None
        need = memory.total or 0
        has_memory = need <= _MAX_MEMORY_FRACTION * (get_machine_memory() or math.inf)
        if probe and not has_memory:
            notes.append(
                f"not probed: training needs {need / 1e9:,.0f} GB, more than this machine has available"
            )
        if probe and has_memory and subject.sample_batches:
            time_estimate = _estimate_time(subject, passes, context_len, decode_batch, seconds, clock)
        parts = parameter_count.group_parameters(config)
        formula = (
            activation_bytes_formula(config, subject.largest_batch)
            if config.kind != "encoder-decoder"
            else None
        )
        return Estimate(
            name=subject.name,
            parameters=sum(part.total for part in parts),
            active=active,
            sizes=parts,
            precision=precision,
            largest=subject.largest_batch,
            mean=subject.mean_batch,
            accumulate=train.accumulate,
            optimizer=train.optimizer,
            batches=subject.batches,
            labels=subject.labels,
            steps=subject.steps,
            text=subject.text,
            operations=operations,
            memory=memory,
            memory_literature=formula,
            decoding=_estimate_decoding(subject, context_len, max(decode_batch, default=1)),
            traffic=traffic,
            time=time_estimate,
            notes=notes,
            machine=get_machine_memory(),
            measurements=find_measurements(subject.task_name, subject.text),
            exports=dict(subject.exports),
            rank=rank,
        )


def _make_inputs(
    design: Recipe | ModelConfig | str | Path,
    batch_size: int | None,
    seq_len: int | None,
    train_tokens: float | None,
    folder: Path,
) -> EstimateInputs:
    """The inputs of the estimate; a UserError if training could not start. ``folder`` is for sample files."""
    if isinstance(design, ModelConfig):
        with prefix_errors("model"):
            check_model(design)
        return model_inputs(design, batch_size, seq_len, train_tokens)._replace(
            exports=find_obstacles(design)
        )
    recipe = check_recipe(_resolve_recipe(design))
    if batch_size or seq_len or train_tokens:
        raise UserError(
            "batch_size, seq_len and train_tokens are for a model config; a recipe has "
            "train.max_tokens, data.max_len and train.steps"
        )
    origin = load_init_from(recipe)
    recipe = inherit_settings(recipe, origin)
    if missing_files := find_missing_files(recipe):
        subject = inputs_without_data(recipe, origin, missing_files)
    else:
        subject = inputs_with_data(recipe, open_data_sample(recipe, origin, folder))
    if origin and recipe.init_from:
        load_init_weights(
            parameter_count.meta_model(subject.config),
            origin,
            recipe.init_from.layer_stride,
            recipe.train.lora,
        )
    tokenizer = origin.tokenizer if origin else make_sample_tokenizer(recipe)
    exports = find_obstacles(subject.config, tokenizer, origin.family if origin else None)
    return subject._replace(task_name=recipe.task.name, exports=exports)


def _resolve_recipe(design: object) -> Recipe:
    """The recipe, loaded from its file if necessary; any other type is a UserError."""
    if isinstance(design, Recipe):
        return design
    if isinstance(design, str) and design in PRESETS and not Path(design).exists():
        raise UserError(
            f"{design!r} is the name of a model; to estimate it pass ModelConfig(preset={design!r}, "
            "vocab_size=...)"
        )
    if isinstance(design, str | Path):
        hint = "" if Path(design).suffix or Path(design).exists() else did_you_mean(str(design), PRESETS)
        if hint:
            raise UserError(f"{str(design)!r} is neither a recipe nor the name of a model{hint}")
        return read_recipe(design)
    hints = {
        Mapping: "; use ModelConfig(**mapping)",
        Run: "; pass its recipe or its config",
        torch.nn.Module: "; pass its config",
    }
    suffix = next((hint for kind, hint in hints.items() if isinstance(design, kind)), "")
    raise UserError(
        f"estimate expects a Recipe, a recipe file or a ModelConfig, got {type(design).__name__}{suffix}"
    )


def _estimate_operations(
    inputs: EstimateInputs, op_counts: list[OpCount], batch_flops: list[int], active_parameters: int
) -> FlopsEstimate:
    """Operations of a forward pass, an optimizer step and the run.

    ``batch_flops`` are the operations of a forward pass over each sample batch.
    """
    train, loads, steps = inputs.train, inputs.batch_shapes, inputs.steps
    times = update_flops_factor(train.lora is not None)
    teacher_flops = train.accumulate * _teacher_flops(inputs)
    recomputed = train.accumulate * _recomputed_flops(inputs, batch_flops)
    step = times * (train.accumulate * sum(batch_flops) / len(batch_flops)) + teacher_flops + recomputed
    n_sides = 2 if inputs.config.kind == "encoder-decoder" else 1
    return FlopsEstimate(
        parts=op_counts,
        forward=sum(work.total for work in op_counts),
        masked_flops=sum(work.times * work.masked_flops for work in op_counts),
        step=step,
        rule=6
        * active_parameters
        * train.accumulate
        * sum(load.tokens for load in loads)
        / len(loads)
        / n_sides,
        run=None if steps is None else step * steps,
        times=times,
        teachers=teacher_flops,
        recomputation=recomputed,
    )


def _recomputed_flops(inputs: EstimateInputs, batch_flops: list[int]) -> float:
    """Operations of the blocks in the backward pass of a mean batch; 0 without ``train.recompute``."""
    if inputs.train.recompute == "none":
        return 0.0
    try:
        recomputed = [count_recomputed(inputs.config, load) for load in inputs.batch_shapes]
    except UnknownFormulaError:  # counted by torch, the head included
        recomputed = batch_flops
    return sum(recomputed) / len(recomputed)


def _estimate_rank(
    inputs: EstimateInputs,
    layout: ParallelLayout,
    hardware: Hardware | None,
    recompute: Recompute,
    precision: ResolvedPrecision,
    works: list[OpCount],
) -> tuple[RankEstimate, Traffic]:
    """Memory, traffic and, with hardware, time of one rank. ``works`` are those of the largest batch."""
    layout = layout._replace(activation_bytes=4 if precision == "fp32" else 2)
    config, batch, accumulate = inputs.config, inputs.largest_batch, inputs.train.accumulate
    links = layout.with_hardware(hardware) if hardware else layout
    micro = micro_batch_shape(batch, links.check(config, batch))
    memory = _estimate_memory(inputs, precision, hardware, micro, recompute == "blocks")
    if recompute == "selective":
        memory = with_selective_recompute(config, memory, micro, layout.activation_bytes)
    n_parameters = parameter_count.count_model_parameters(config)
    traffic = estimate_traffic(
        config, batch, memory.gradients // 4, links, accumulate, recompute, n_parameters
    )
    rank_memory = estimate_rank_memory(config, memory, micro, layout, accumulate)
    rank_time = None
    if hardware:
        rank_time = estimate_rank_time(
            config, works, batch, links, traffic, rank_memory, hardware, precision,
            times=update_flops_factor(inputs.train.lora is not None), recompute=recompute,
            accumulate=accumulate, teachers=accumulate * _teacher_flops(inputs),
        )  # fmt: skip
    return RankEstimate(links, recompute, hardware, rank_memory, rank_time), traffic


def _estimate_memory(
    inputs: EstimateInputs,
    precision: ResolvedPrecision,
    hardware: Hardware | None,
    batch_shape: BatchShape | None = None,
    recompute: bool | None = None,
) -> TrainingMemory:
    """Memory of training for a batch, teachers included; by default the largest, with ``train.recompute``."""
    train = inputs.train
    memory = estimate_training_memory(
        inputs.config,
        batch_shape or inputs.largest_batch,
        train.optimizer,
        precision=precision,
        ema=bool(train.ema),
        recompute=train.recompute == "blocks" if recompute is None else recompute,
        kernels=hardware is None or hardware.name == "cpu",
        accumulate=train.accumulate,
        prepare=lambda model: prepare_trainable(model, train),
    )
    if memory.total is None and batch_shape is None:
        inputs.notes.append("activations are unknown: what a component stores depends on runtime values")
    return memory._replace(teachers=sum(model_bytes(teacher.run.model) for teacher in inputs.teachers))


def _count_ops(
    config: ModelConfig, batch_shape: BatchShape, notes: list[str]
) -> tuple[list[OpCount], Callable[[BatchShape], int]]:
    """(operation counts of the largest batch, function from batch shape to operations of a forward pass)."""
    try:
        return count_forward(config, batch_shape), lambda load: sum(
            work.total for work in count_forward(config, load)
        )
    except UnknownFormulaError as unknown:
        part = str(unknown)
    try:
        total = count_flops(config, batch_shape)
    except UnknownFormulaError as unknown:
        raise UserError(
            f"the operations of this model are unknown: no formula for {part}, and {unknown}"
        ) from unknown
    notes.append(
        f"no formula for {part}: operations are counted by torch, with the head applied to every token"
    )
    works = [OpCount("all components, counted", 1, total, "")]
    return works, lambda load: total * load.tokens // batch_shape.tokens


def _teacher_flops(inputs: EstimateInputs) -> float:
    """Operations of the forward passes of all teachers, for a mean batch."""
    total = 0
    for i, teacher in enumerate(inputs.teachers):
        config = teacher.run.config
        loads = [
            batch_shape_of(config, teacher.task, batch.teachers[i]) for _, _, batch in inputs.sample_batches
        ]
        _, flops = _count_ops(config, loads[0], inputs.notes)
        total += sum(map(flops, loads))
    return total / max(1, len(inputs.sample_batches))


def _estimate_time(
    inputs: EstimateInputs,
    batch_flops: list[int],
    context_len: int | None,
    decode_batch: Sequence[int],
    probe_seconds: float,
    clock: ClockFn,
) -> TimeEstimate:
    """Predict times from a few optimizer steps and decoding steps.

    ``batch_flops`` are the operations of a forward pass over each sample batch.
    """
    train, config, batches, steps = inputs.train, inputs.config, inputs.batches, inputs.steps
    samples = [batch for _, _, batch in inputs.sample_batches]
    times = measure_update_times(config, inputs.task, train, samples, batch_flops, probe_seconds, clock)
    update = times.predict_seconds(train.accumulate * sum(batch_flops) / len(batch_flops))
    speeds = []
    if config.kind != "encoder":
        position = (context_len or inputs.context) // 2
        speeds = [
            measure_decoding_speed(config, rows, position, inputs.mean_batch.source, inputs.cache)
            for rows in decode_batch
        ]
    return TimeEstimate(
        update=update,
        tokens_per_s=inputs.labels / update,
        epoch=None if batches is None else update * batches / train.accumulate,
        run=None if steps is None else update * steps,
        speeds=speeds,
        timed_updates=len(times.seconds),
    )


def _estimate_decoding(
    inputs: EstimateInputs, context_len: int | None, batch_size: int
) -> DecodingEstimate | None:
    """Cost of decoding after ``context_len`` tokens with ``batch_size`` rows; None for an encoder."""
    config = inputs.config
    if config.kind == "encoder":
        return None
    context_len = context_len or inputs.context
    source = context_len if config.kind == "encoder-decoder" else 0
    shape = cache_shape(config)
    selected = inputs.cache or Choice("static" if shape.kv_layers else "state")
    alternatives = [Choice(name) for name in CACHE.names() if name != selected.name]
    caches = [measure_cache(choice, shape, batch_size, context_len) for choice in (selected, *alternatives)]
    if caches[0].unsupported_reason:
        inputs.notes.append(caches[0].unsupported_reason)
    try:
        token: int | None = token_flops(config, context_len, source, inputs.cache)
        source_bytes = count_source_bytes(config, source) if source else 0
    except UnknownFormulaError:
        token, source_bytes = None, 0
    batch = BatchShape(batch_size, context_len - 1, source)
    return DecodingEstimate(
        context=context_len,
        source=source,
        token=token,
        rows=batch_size,
        caches=[cache for cache in caches if not cache.unsupported_reason],
        source_bytes=source_bytes,
        heads=bytes_by_kv_heads(config, len(shape.kv_layers)) if shape.kv_layers else {},
        memory={
            dtype: estimate_decoding_memory(config, dtype, batch, 1, cache=inputs.cache)
            for dtype in ("fp32", "bf16", "int8", "int4")
        },
    )
