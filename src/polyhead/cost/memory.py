"""Bytes of training: weights, gradients, optimizer state, weight averages and what a step allocates.

Parameters are fp32, also in mixed precision, where matrix products round copies of them to bf16
(train/precision.py). These copies count as activations, because autograd saves them with the rest
(Micikevicius et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.cost.fake_tensors import (
    LiveBytes,
    SavedActivations,
    compute_features,
    fake_inputs,
    fake_mode,
    fake_model,
)
from polyhead.cost.workload import BatchShape
from polyhead.kernels.build_extension import skip_kernels
from polyhead.kernels.training.mode import training_kernels
from polyhead.models import ReplacedTokenDetector
from polyhead.nn.loss import cross_entropy
from polyhead.nn.stack import Stack, recompute_blocks

_MANY_TOKENS = 1 << 15


class TrainingMemory(NamedTuple):
    """Bytes of training by purpose. They do not all exist at once: ``total`` is the peak."""

    weights: int  # parameters and buffers
    gradients: int
    optimizer: int
    average: int  # exponential moving average of the weights, with train.ema
    activations: int | None  # None if a part fails on fake tensors
    loss: int  # the most that the loss adds: gradients of the head and of its inputs, logits
    block_activations: int | None = 0  # of the largest block, with train.recompute; None as above
    teachers: int = 0  # parameters and buffers of the teachers of distillation
    step: int | None = None  # the most that a forward and a backward pass hold at once, gradients included

    @property
    def total(self) -> int | None:
        """The most bytes at once, without those of Python and torch; None if ``step`` is."""
        held = self.weights + self.optimizer + self.average + self.teachers
        return None if self.step is None else held + self.step


def estimate_training_memory(
    config: ModelConfig,
    batch_shape: BatchShape,
    optimizer: Choice,
    *,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    ema: bool = False,
    recompute: bool = False,
    kernels: bool = False,
    accumulate: int = 1,
    prepare: Callable[[nn.Module], object] = lambda model: None,
) -> TrainingMemory:
    """Estimate the memory of one step over a batch on fake tensors, without allocating it.

    A batch of many tokens has a loss of many chunks, so it is estimated from two smaller ones: beyond their
    size each number grows with the rows.

    ``prepare`` is applied to the model first, for example to freeze parts. With ``recompute`` the blocks keep
    only their inputs, and the activations of one block at a time exist again in the backward pass. With
    ``kernels`` the passes are those of the kernels of training on a CPU, which compute nothing here; with
    ``accumulate`` above 1 gradients exist all the time.
    """
    few_rows = max(1, _MANY_TOKENS // max(batch_shape.length, batch_shape.source))
    if batch_shape.rows > 2 * few_rows:
        small, large = (
            estimate_training_memory(
                config, batch_shape.select_rows(n), optimizer, precision=precision, ema=ema,
                recompute=recompute, kernels=kernels, accumulate=accumulate, prepare=prepare,
            )
            for n in (few_rows, 2 * few_rows)
        )  # fmt: skip
        factor = batch_shape.rows / few_rows - 1
        pairs: Iterable[tuple[Any, Any]] = zip(small, large, strict=True)
        numbers: list[Any] = [None if None in (a, b) else round(a + factor * (b - a)) for a, b in pairs]
        return TrainingMemory(*numbers)
    with fake_mode(), skip_kernels() if kernels else nullcontext():
        model = fake_model(config)
        prepare(model)
        parameters, trainable = list(model.parameters()), [p for p in model.parameters() if p.requires_grad]
        measure = partial(_measure_step, model, config, batch_shape, precision, kernels, accumulate)
        activations, block, loss, step = measure()
        if recompute:
            recompute_blocks(model)
            activations, _, loss, step = measure()
        return TrainingMemory(
            model_bytes(model),
            sum(p.nbytes for p in trainable),
            optimizer_state_bytes(model, optimizer),
            sum(p.nbytes for p in parameters) if ema else 0,
            activations,
            loss,
            block if recompute else 0,
            step=step,
        )


def model_bytes(model: nn.Module) -> int:
    """Bytes of the parameters and buffers of a model."""
    return sum(x.nbytes for tensors in (model.parameters(), model.buffers()) for x in tensors)


def optimizer_state_bytes(model: nn.Module, optimizer: Choice) -> int:
    """Bytes of optimizer state after the first step. For a model in ``fake_mode``."""
    for p in model.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    optimizers = OPTIMIZER.build(optimizer, model, 1e-3)
    for instance in optimizers:
        instance.step()
    for p in model.parameters():
        p.grad = None
    states = [state for instance in optimizers for state in instance.state.values()]
    return sum(x.nbytes for state in states for x in state.values() if isinstance(x, torch.Tensor))


def _measure_step(
    model: nn.Module, config: ModelConfig, batch_shape: BatchShape, precision: str, kernels: bool,
    accumulate: int,
) -> tuple[int | None, int | None, int, int | None]:  # fmt: skip
    """Bytes of the passes over a batch without padding: activations, the largest block, the loss, the peak.

    Activations are what autograd saves up to the input of the head; None if a part fails on fake tensors.
    """
    stacks = [part for part in model.modules() if isinstance(part, Stack)]
    is_recomputed = any(stack.recompute for stack in stacks)
    if not is_recomputed and any(isinstance(part, nn.LSTM) for part in model.modules()):
        return None, None, 0, None  # oneDNN allocates a workspace whose size is known only at run time
    saved, block_sizes, last_size = SavedActivations(model.train()), [0], 0

    def start_block(*_: object) -> None:
        nonlocal last_size
        last_size = saved.nbytes

    def end_block(*_: object) -> None:
        block_sizes.append(saved.nbytes - last_size)
        start_block()

    handles = [stack.register_forward_pre_hook(start_block) for stack in stacks]
    handles += [layer.register_forward_hook(end_block) for stack in stacks for layer in {*stack.layers}]
    try:
        with LiveBytes(model) as live:
            for p in model.parameters():
                p.grad = torch.empty_like(p) if p.requires_grad and accumulate > 1 else None
            half = torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32")  # fp16 is as wide
            with half, training_kernels() if kernels else nullcontext():
                with saved:
                    features = compute_features(model, fake_inputs(config, batch_shape))  # type: ignore[arg-type]
                activations, before, forward = saved.nbytes, live.now, live.peak
                live.peak = before
                saved.tensors.clear()
                total = _sum_losses(model, config, batch_shape, features)
                del features
            loss = live.peak - before
            total.backward()
    except Exception:  # a part may be user code; the estimate reports the value as unknown
        return None, None, 0, None
    finally:
        for handle in handles:
            handle.remove()
        for p in model.parameters():
            p.grad = None
    return activations, max(block_sizes), loss, max(forward, live.peak)


def _sum_losses(model: nn.Module, config: ModelConfig, batch_shape: BatchShape, features: Tensor) -> Tensor:
    """A loss with the memory of that of training: cross-entropy of as many labels, or a sum of features."""
    if isinstance(model, ReplacedTokenDetector):
        inputs = model.generator.features(*fake_inputs(config, batch_shape))
        loss = _sum_losses(model.generator, config.generator_config, batch_shape, inputs)
        return features.float().sum() + loss
    if config.labels or not config.lm_head:
        return features.float().sum()
    labels = torch.zeros(batch_shape.labels, dtype=torch.int64)
    features = features.flatten(0, -2)[: len(labels)]
    return cross_entropy(features, model.get_submodule("head"), labels).total  # type: ignore[arg-type]


def activation_bytes_formula(config: ModelConfig, batch_shape: BatchShape) -> float:
    """Bytes of 16-bit activations by the formula of Korthikanti et al. (2022, sec. 4.1).

    S B H (34 + 5 n_heads S / H) per layer, for a GPT layer with dropout masks of one byte per element, stored
    attention weights and widths H and 4H.
    """
    S, H = batch_shape.length, config.d_model
    return config.n_layers * batch_shape.rows * S * H * (34 + 5 * config.n_heads * S / H)
