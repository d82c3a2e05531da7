"""Optimisers by name: from a model's parameters to one or more torch optimisers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from polyhead.registry import OPTIMIZER


@OPTIMIZER.register("adamw")
def adamw(
    model: nn.Module, lr: float, *, beta1: float = 0.9, beta2: float = 0.98, eps: float = 1e-9, weight_decay: float = 0.0
) -> list[Optimizer]:
    """Adam with decoupled weight decay on matrices, fused (Loshchilov & Hutter, 2019)."""
    groups = _decay_groups(list(model.parameters()), weight_decay)
    return [torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)]


@OPTIMIZER.register("adafactor")
def adafactor(model: nn.Module, lr: float, *, weight_decay: float = 0.0) -> list[Optimizer]:
    """Adam's second moment as an outer product of row and column means: little memory (Shazeer & Stern, 2018)."""
    return [torch.optim.Adafactor(_decay_groups(list(model.parameters()), weight_decay), lr=lr)]


@OPTIMIZER.register("muon")
def muon(
    model: nn.Module, lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0, adam_lr: float | None = None
) -> list[Optimizer]:
    """Orthogonalised momentum for the matrices inside the blocks, AdamW for all else (Jordan et al., 2024).

    ``adam_lr`` is the peak rate of the AdamW part, ``lr`` if not given; Muon's own updates are rescaled to
    the size of Adam's, so one rate can serve both.
    """
    outside = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    outside |= {id(p) for name, p in model.named_parameters() if name.startswith("head.")}
    inside = [p for p in model.parameters() if p.ndim == 2 and id(p) not in outside]
    kept = {id(p) for p in inside}
    rest = [p for p in model.parameters() if id(p) not in kept]
    matrices = torch.optim.Muon(
        inside, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    others = torch.optim.AdamW(
        _decay_groups(rest, weight_decay), lr=adam_lr or lr, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    return [matrices, others]


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
