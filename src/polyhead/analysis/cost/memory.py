"""Bytes of training: weights, gradients, state of the optimiser, averages, and what the backward pass waits for.

Parameters are fp32, also in mixed precision, where products round copies of them to bf16 (train/precision.py): these
copies count among the activations, because autograd keeps them with the rest (Micikevicius et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import nn

from polyhead.analysis.cost.weightless import Saved, features_of, given, weightless
from polyhead.analysis.cost.work import Load
from polyhead.config import ModelConfig
from polyhead.models import Detector
from polyhead.models.build import model_class
from polyhead.nn.loss import CHUNK
from polyhead.registry import OPTIMIZER, Choice


class Memory(NamedTuple):
    """Bytes of a training, by what they hold. A step holds at most all of it."""

    weights: int  # parameters, and tables that are no parameters
    gradients: int
    optimizer: int
    average: int  # of the weights, with train.ema
    activations: int | None  # None: a part fails on tensors without numbers
    loss: int  # gradients of the head and of what it reads, and the logits of a chunk
    teachers: int = 0  # parameters and tables of the runs that teach it

    @property
    def total(self) -> int | None:
        return None if self.activations is None else sum(x for x in self if x is not None)


def training_memory(
    config: ModelConfig,
    load: Load,
    optimizer: Choice,
    *,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    ema: bool = False,
    prepare: Callable[[nn.Module], object] = lambda model: None,
) -> Memory:
    """Of one step over a batch, without memory for any of it. ``prepare`` is done to the model first: parts are frozen."""
    with weightless():
        model = model_class(config)(config)
        prepare(model)
        every, learned = list(model.parameters()), [p for p in model.parameters() if p.requires_grad]
        return Memory(
            weights(model),
            sum(p.nbytes for p in learned),
            optimizer_state(model, optimizer),
            sum(p.nbytes for p in every) if ema else 0,
            _activations(model, config, load, precision),
            _loss(model, config, load, precision),
        )


def weights(model: nn.Module) -> int:
    """Bytes of parameters, and of tables that are no parameters."""
    return sum(x.nbytes for held in (model.parameters(), model.buffers()) for x in held)


def optimizer_state(model: nn.Module, optimizer: Choice) -> int:
    """Bytes that the optimisers of a run keep: those they make in their first step. For a model without memory (``weightless``)."""
    for p in model.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    optimizers = OPTIMIZER.build(OPTIMIZER.check(optimizer), model, 1e-3)
    for one in optimizers:
        one.step()
    for p in model.parameters():
        p.grad = None
    states = [state for one in optimizers for state in one.state.values()]
    return sum(x.nbytes for state in states for x in state.values() if isinstance(x, torch.Tensor))


def _activations(model: nn.Module, config: ModelConfig, load: Load, precision: str) -> int | None:
    """What autograd keeps of a forward pass over whole rows, up to what the head reads; None where a part fails."""
    if any(isinstance(part, nn.LSTM) for part in model.modules()):
        return None  # oneDNN keeps a workspace of its own, whose size is known when it is there
    try:
        with (
            Saved(model.train()) as saved,
            torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"),  # fp16 is as large
        ):
            features_of(model, given(config, load))  # type: ignore[arg-type]
    except Exception:  # a part may be anybody's code; the plan says that this is not known
        return None
    return saved.nbytes


def literature(config: ModelConfig, load: Load) -> float:
    """Bytes of activations of 16 bits by the formula of Korthikanti et al. (2022, sec. 4.1), S B H (34 + 5 n_heads S / H) a layer.

    It is for the layer of GPT with dropout of one byte an element, attention weights stored, both widths H and 4H.
    """
    S, H = load.length, config.d_model
    return config.n_layers * load.rows * S * H * (34 + 5 * config.n_heads * S / H)


def _loss(model: nn.Module, config: ModelConfig, load: Load, precision: str) -> int:
    """Cross-entropy takes its gradients in the forward pass (nn/loss.py): of what the head reads, and of its weights if they learn."""
    if isinstance(model, Detector):
        return _loss(model.generator, config.of_generator, load, precision)
    if config.labels or not config.head:
        return 0
    C, V, width = config.embedding_width, config.vocab_size, 4 if precision == "fp32" else 2
    chunk = min(CHUNK, load.labels)
    own = C if model.get_parameter("head.weight").requires_grad else 0
    kept = load.labels * (C * width + 8) + V * (own + config.head_bias) * 4
    rounded = 0 if precision == "fp32" else 2  # what the products are given
    return kept + chunk * V * (4 + 4 + rounded)  # scores and probabilities of a chunk
