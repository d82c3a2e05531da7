"""Optimisers, from a model's parameters to one or more optimisers of torch.

``train.lr`` is the peak rate, the schedule (``train.schedule``) a factor on it, ``train.clip_norm`` the longest
gradient.

Options:
  weight_decay: pull of the matrices towards 0; biases and norms are left alone
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from polyhead.nn.position.base import Position
from polyhead.nn.stack import Stack
from polyhead.ranges import Above0, AtLeast0, Decay
from polyhead.registry import OPTIMIZER
from polyhead.train.muon import Muon


@OPTIMIZER.register("adamw")
def adamw(
    model: nn.Module,
    lr: float,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.98,
    eps: Above0 = 1e-9,
    weight_decay: AtLeast0 = 0.0,
) -> list[Optimizer]:
    """Adam with decoupled weight decay: the step is the mean gradient over its own root mean square.

    β₂ and ε are those of the original Transformer. The kernel is torch's fused one. The default.

    Equation: m ← β₁ m + (1 - β₁) g,  s ← β₂ s + (1 - β₂) g²,  m̂ = m / (1 - β₁ᵗ),  ŝ = s / (1 - β₂ᵗ)
              w ← w - lr (m̂ / (√ŝ + ε) + weight_decay · w)
    Paper: Kingma & Ba, 2015; Loshchilov & Hutter, 2019
    When: the safe choice
    Options:
      beta1: decay of the mean of gradients
      beta2: decay of the mean of their squares
      eps: added to the root of the second moment
    """
    groups = _decay_groups(list(model.parameters()), weight_decay)
    return [torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)]


@OPTIMIZER.register("adafactor")
def adafactor(model: nn.Module, lr: float, *, weight_decay: AtLeast0 = 0.0) -> list[Optimizer]:
    """Adam's second moment as an outer product of row and column means: almost no memory beside the weights.

    Equation: s ≈ r cᵀ / sum(r),  r and c the running means of g² over columns and rows
    Paper: Shazeer & Stern, 2018
    When: memory is short
    """
    return [torch.optim.Adafactor(_decay_groups(list(model.parameters()), weight_decay), lr=lr)]


@OPTIMIZER.register("muon")
def muon(
    model: nn.Module,
    lr: float,
    *,
    momentum: Decay = 0.95,
    weight_decay: AtLeast0 = 0.0,
    adam_lr: Above0 | None = None,
) -> list[Optimizer]:
    """Momentum whose matrix is replaced by the nearest orthogonal one, for the matrices inside the blocks.

    Embeddings, positions, norms, biases and all that is above the blocks, such as the output layer, get AdamW. Updates are
    rescaled to the size of Adam's, so one rate can serve both. The products are in bf16 where that is fast, else in fp32.

    Equation: M ← momentum · M + g;  W ← W - lr · U Vᵀ · 0.2 √max(rows, columns),  M = U S Vᵀ
    Paper: Jordan et al., 2024; Liu et al., 2025
    When: fewer steps count; its products cost time at each, so compare at equal time, not at equal steps
    Options:
      momentum: decay of the momentum
      adam_lr: peak rate of the AdamW part; ``train.lr`` if not given
    """
    blocks = [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.layers]
    # a position scheme in a block is a table, whose rows are looked up as those of an embedding
    tables = {id(p) for part in model.modules() if isinstance(part, Position) for p in part.parameters()}
    chosen = {id(p) for block in blocks for p in block.parameters() if p.ndim == 2} - tables
    inside = [p for p in model.parameters() if id(p) in chosen]
    rest = [p for p in model.parameters() if id(p) not in chosen]
    others = torch.optim.AdamW(
        _decay_groups(rest, weight_decay), lr=adam_lr or lr, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    if not inside:
        return [others]
    return [Muon(inside, lr, momentum, weight_decay), others]


def set_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Every group at its own peak rate times the schedule's factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor


def _decay_groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Weight decay pulls on matrices only; biases and norms are left alone."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
