"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.errors import UserError
from polyhead.nn.exact import exactly, widened
from polyhead.registry import FEED_FORWARD, Choice

MOST = 10_000  # experts: each is a network of its own, a millisecond to build
PUSH = 1e-3  # of the load's gradient: its size means nothing to Adam, and this leaves train.clip_norm to the loss


class Router(nn.Linear):
    """Scores of the experts, in fp32 also where the model is not: a rounded score sends a token elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) -> probabilities (N, E)."""
        with exactly(x):
            return F.linear(widened(x), widened(self.weight)).softmax(-1)


@FEED_FORWARD.register("experts")
class Experts(nn.Module):
    """Several feed-forwards of which a router picks a few for each token: parameters for little more work.

    No token is dropped and none sees another, so texts mean the same alone and together. Left alone, a router comes to
    prefer a few experts; with ``balance`` each has a bias that counts when experts are picked and not when they are
    weighed, and its gradient is the expert's load above the mean, so the optimizer lowers what is crowded. ``model.d_ff``
    is the width of one expert.

    Equation: y = Σ_{i ∈ P} w_i E_i(x),  s = softmax(x W_router),  P = the top_k of s + b,  w_i = s_i / Σ_{j ∈ P} s_j
              ∂L/∂b_i ∝ share of the tokens that picked i - top_k / n_experts
    Paper: Shazeer et al., 2017, eq. 1 to 5; Jiang et al., 2024, sec. 2.1; Wang et al., 2024 (the bias)
    When: memory is there for more parameters and time is not
    Recipe: model: {feed_forward: {name: experts, n_experts: 8, top_k: 2, each: swiglu}}
    Options:
      n_experts: feed-forwards there are
      top_k: of them that a token has
      each: name of the feed-forward that each one is
      normalize: weights of the picked ones sum to 1; with top_k 1 they must not, or the router would learn nothing
      balance: even out how much the experts have to do
      dropout: probability, on the inner activations
    """

    counts_tokens = True  # the loads are of tokens alone

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        n_experts: int = 8,
        top_k: int = 2,
        each: str = "relu",
        normalize: bool = True,
        balance: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if each == "experts":
            raise UserError(
                "each of feed_forward 'experts' is a feed-forward of one network, not 'experts' again"
            )
        if n_experts > MOST:
            raise UserError(f"n_experts of feed_forward 'experts' is {MOST:,} at most, not {n_experts:,}")
        if not 0 < top_k <= n_experts:
            raise UserError(
                f"top_k of feed_forward 'experts' is from 1 to n_experts={n_experts}, not {top_k}"
            )
        if top_k == 1 and normalize and n_experts > 1:
            raise UserError(
                "feed_forward 'experts' with top_k=1 weighs the one that is picked by 1, whatever the router says, "
                "which learns nothing from that; set normalize: false"
            )
        self.top_k, self.normalize = top_k, normalize
        self.router = Router(d_model, n_experts, bias=False)
        part = FEED_FORWARD.check(Choice(each, dropout=dropout))
        self.experts = nn.ModuleList(FEED_FORWARD.build(part, d_model, d_ff) for _ in range(n_experts))
        self.balance = nn.Parameter(torch.zeros(n_experts)) if balance else None

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C), 0 where there is no token."""
        if pos is None:
            return self.read(x.reshape(-1, x.size(-1))).view_as(x)
        there = pos.expand(x.shape[:-1]) >= 0
        return torch.zeros_like(x).masked_scatter(there[..., None], self.read(x[there]))

    def read(self, tokens: Tensor) -> Tensor:
        """(N, C) -> (N, C)."""
        if not len(tokens):
            return tokens
        picked, weights = self.pick(tokens)
        order = picked.flatten().argsort(stable=True)  # by expert
        loads = picked.flatten().bincount(minlength=len(self.experts)).tolist()
        dealt = tokens.index_select(0, order // self.top_k).split(loads)
        done = torch.cat(
            [expert(some) for expert, some in zip(self.experts, dealt, strict=True) if len(some)]
        )
        found = done.index_select(0, order.argsort()).view(len(tokens), self.top_k, -1)
        return (found * weights[..., None]).sum(1).to(tokens.dtype)

    def pick(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C) -> experts of each token (N, top_k) and how much each counts, in fp32 at least."""
        scores = self.router(tokens)
        wanted = scores if self.balance is None else scores + self.balance.to(scores.dtype)
        picked = wanted.topk(self.top_k, -1).indices
        weights = scores.gather(1, picked)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.balance is not None and torch.is_grad_enabled():
            weights = _Balanced.apply(weights, self.balance, picked)
        return picked, weights


class _Balanced(torch.autograd.Function):
    """The weights as they are; going back, the bias of each expert learns how far its load is above the mean."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, balance: Tensor, picked: Tensor) -> Tensor:
        load = picked.flatten().bincount(minlength=len(balance)) / len(picked)
        ctx.save_for_backward((load - picked.size(1) / len(balance)).to(balance.dtype))
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (above,) = ctx.saved_tensors
        return grad, PUSH * above, None
