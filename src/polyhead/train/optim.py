"""Optimizers: functions from a model to one or more ``torch.optim`` optimizers.

``train.lr`` is the peak learning rate, the schedule (``train.schedule``) a factor on it, ``train.clip_norm``
the maximum gradient norm.

Options:
  weight_decay: decoupled weight decay of matrices; biases and norms have none
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyhead.core.option_types import Decay, NonNegativeFloat, PositiveFloat
from polyhead.core.registry import OPTIMIZER
from polyhead.kernels.training.adamw import AdamW
from polyhead.nn.position.base import Position
from polyhead.nn.stack import Stack
from polyhead.train.distributed.local_tensor import full_tensor, is_dtensor, shard_like
from polyhead.train.precision import resolve_precision

# steepest at 0, so that few iterations suffice; singular values end between 0.7 and 1.2
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS, EPS = 5, 1e-7


class Muon(Optimizer):
    """Muon; bit-identical to ``torch.optim.Muon`` where bf16 is fast.

    Torch's implementation always multiplies in bf16, which is ten times slower than fp32 on processors
    without bf16 instructions.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One optimizer step."""
        assert closure is None
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
                direction = p.grad.lerp(mean, momentum)  # Nesterov's
                # of a sharded matrix every rank computes the full update: a shard of it needs the full matrix
                update = shard_like(orthogonalize(full_tensor(direction)), p)
                p.mul_(1 - lr * group["weight_decay"])
                # Liu et al., 2025, eq. 4: the RMS of an AdamW update
                p.add_(update, alpha=-lr * 0.2 * sqrt(max(p.shape)))


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate nearest orthogonal matrix by Newton-Schulz iteration: U S Vᵀ -> U S' Vᵀ with S' near 1."""
    a, b, c = NS_COEFFICIENTS
    x = matrix.bfloat16() if resolve_precision("auto", matrix.device) == "bf16" else matrix.float()
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=EPS)  # singular values at most 1
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class ShardedAdafactor(torch.optim.Adafactor):
    """``torch.optim.Adafactor`` whose parameters are DTensors.

    Its means over rows and columns and the root mean square of a weight need whole matrices: each parameter
    is gathered for its own step. The state, which is small, is whole on every rank.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One optimizer step."""
        assert closure is None
        groups = self.param_groups
        try:
            for group in groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    full = nn.Parameter(full_tensor(p.detach()).clone())
                    full.grad = full_tensor(p.grad)
                    self.state[full] = self.state.pop(p, {})
                    self.param_groups = [{**group, "params": [full]}]
                    super().step()
                    self.state[p] = self.state.pop(full)
                    p.copy_(shard_like(full.detach(), p))
        finally:
            self.param_groups = groups


@OPTIMIZER.register("adamw")
def adamw(
    model: nn.Module,
    lr: float,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.98,
    eps: PositiveFloat = 1e-9,
    weight_decay: NonNegativeFloat = 0.0,
) -> list[Optimizer]:
    """Adam with decoupled weight decay: the step is the mean gradient over its own root mean square.

    β₂ and ε are those of the original Transformer. The default.

    Equation: m ← β₁ m + (1 - β₁) g,  s ← β₂ s + (1 - β₂) g²,  m̂ = m / (1 - β₁ᵗ),  ŝ = s / (1 - β₂ᵗ)
              w ← w - lr (m̂ / (√ŝ + ε) + weight_decay · w)
    Paper: Kingma & Ba, 2015; Loshchilov & Hutter, 2019
    When: the safe choice
    Options:
      beta1: decay of the running mean of gradients
      beta2: decay of the running mean of squared gradients
      eps: added to the root of the second moment
    """
    groups = _decay_groups(list(model.parameters()), weight_decay)
    return [AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)]


@OPTIMIZER.register("adafactor")
def adafactor(model: nn.Module, lr: float, *, weight_decay: NonNegativeFloat = 0.0) -> list[Optimizer]:
    """Adam's second moment as an outer product of row and column means: almost no memory for optimizer state.

    Equation: s ≈ r cᵀ / sum(r),  r and c the running means of g² over columns and rows
    Paper: Shazeer & Stern, 2018
    When: memory is short
    """
    parameters = list(model.parameters())
    kind = ShardedAdafactor if any(map(is_dtensor, parameters)) else torch.optim.Adafactor
    return [kind(_decay_groups(parameters, weight_decay), lr=lr)]


@OPTIMIZER.register("muon")
def muon(
    model: nn.Module,
    lr: float,
    *,
    momentum: Decay = 0.95,
    weight_decay: NonNegativeFloat = 0.0,
    adam_lr: PositiveFloat | None = None,
) -> list[Optimizer]:
    """Momentum, orthogonalised, for the weight matrices of the blocks; AdamW for all other parameters.

    AdamW updates embeddings, positions, norms, biases and everything outside the blocks, such as the output
    layer. Muon's updates are rescaled to the size of Adam's, so that both can use one learning rate. Matmuls
    run in bf16 where the hardware is fast at it, else in fp32.

    Equation: M ← momentum · M + g;  W ← W - lr · U Vᵀ · 0.2 √max(rows, columns),  M = U S Vᵀ
    Paper: Jordan et al., 2024; Liu et al., 2025
    When: fewer steps matter; each step costs more matmuls, so compare at equal time, not at equal steps
    Options:
      momentum: decay of the momentum
      adam_lr: peak learning rate of AdamW; ``train.lr`` if not set
    """
    blocks = [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.layers]
    # parameters of a position scheme in a block are lookup tables, like an embedding
    tables = {id(p) for part in model.modules() if isinstance(part, Position) for p in part.parameters()}
    matrix_ids = {id(p) for block in blocks for p in block.parameters() if p.ndim == 2} - tables
    matrices = [p for p in model.parameters() if id(p) in matrix_ids]
    other_params = [p for p in model.parameters() if id(p) not in matrix_ids]
    adam = AdamW(
        _decay_groups(other_params, weight_decay), lr=adam_lr or lr, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    if not matrices:
        return [adam]
    return [Muon(matrices, lr, momentum, weight_decay), adam]


def set_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Set the learning rate of every parameter group to its peak rate times ``factor``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor


def list_parameters(*optimizers: Optimizer) -> list[nn.Parameter]:
    """The parameters of optimizers, in the order of their state dicts."""
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def _decay_groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Parameter groups: matrices with weight decay; biases and norms without."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
