"""Mixture-of-experts feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import FEED_FORWARD
from polyhead.nn.device import at_least_fp32, is_traced, no_autocast, product_dtype
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.shard_plan import ShardPlan

_ALIGNMENT = 8  # features: grouped products read rows of 16 bytes


def can_group(experts: Sequence[nn.Module], x: Tensor) -> bool:
    """Whether a grouped product applies: bf16 input, experts are (gated) MLPs, activation without weights.

    torch has grouped products only in bf16.
    """
    first = experts[0]
    return (
        product_dtype(x) == torch.bfloat16
        and isinstance(first, FeedForward | GatedFeedForward)
        and all(isinstance(part, nn.Linear) for part in list_maps(experts))  # and without adapters
        and not (isinstance(first.activation, nn.Module) and any(True for _ in first.activation.parameters()))
    )


def list_maps(experts: Sequence[nn.Module]) -> list[nn.Module]:
    """The linear maps of feed-forward experts, with or without adapters."""
    return [part for expert in experts for name, part in expert.named_children() if name.endswith("_proj")]


def apply_grouped(experts: Sequence[nn.Module], x: Tensor, loads: Tensor) -> Tensor:
    """Apply expert e to the next ``loads[e]`` rows: (M, C), (E,) -> (M, C).

    The loads are not read from the device, and the graph is the same for any of them.
    """
    first = experts[0]
    assert isinstance(first, FeedForward | GatedFeedForward)
    ends = loads.cumsum(0).to(torch.int32)
    expert_ids = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)

    def project(name: str, x: Tensor) -> Tensor:
        return _grouped_linear([getattr(expert, name) for expert in experts], x, ends, expert_ids)

    inner = first.activation(project("gate_proj" if isinstance(first, GatedFeedForward) else "up_proj", x))
    if isinstance(first, GatedFeedForward):
        inner = inner * project("up_proj", x)
    return project("down_proj", first.dropout(inner))


def apply_all(experts: Sequence[nn.Module], x: Tensor, expert_ids: Tensor) -> Tensor:
    """Apply each expert to all rows and keep those of its own: for experts of any other kind.

    (M, C), (M,) -> (M, C), at E times the cost.
    """
    out = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        out = torch.where((expert_ids == i)[:, None], expert(x), out)
    return out


def _grouped_linear(maps: Sequence[nn.Linear], x: Tensor, ends: Tensor, expert_ids: Tensor) -> Tensor:
    """Each row times the matrix of its expert, plus the bias: (M, in) -> (M, out)."""
    dtype = product_dtype(x)
    weight = torch.stack([one.weight for one in maps]).to(dtype)
    d_out, d_in = weight.shape[1:]
    pads = (0, -d_in % _ALIGNMENT), (0, -d_out % _ALIGNMENT)
    weight = F.pad(weight, (*pads[0], *pads[1])) if pads[0][1] or pads[1][1] else weight
    rows = F.pad(x.to(dtype), pads[0]) if pads[0][1] else x.to(dtype)
    out = F.grouped_mm(rows, weight.mT, offs=ends)[:, :d_out]
    biases: list[Tensor] = [one.bias for one in maps if one.bias is not None]
    return out + torch.stack(biases).to(dtype).index_select(0, expert_ids) if biases else out


MAX_EXPERTS = 10_000  # each is a module that takes a millisecond to build
# Adam ignores the scale of the load's gradient; a small one keeps it out of train.clip_norm
BALANCE_GRAD_SCALE = 1e-3


class Router(nn.Linear):
    """Scores of the experts, in fp32 even in a low-precision model: rounding would change the routing."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) -> probabilities (N, E)."""
        return self.compute_logits(x).softmax(-1)

    def compute_logits(self, x: Tensor) -> Tensor:
        """(N, C) -> logits (N, E)."""
        with no_autocast(x):
            return F.linear(at_least_fp32(x), at_least_fp32(self.weight))


@FEED_FORWARD.register("moe")
class MixtureOfExperts(nn.Module):
    """A router selects a few of several feed-forward layers per token: more parameters at little more cost.

    No token is dropped and routing is per token, so outputs do not depend on the rest of the batch. Without
    balancing, a router tends to use few experts; with ``balance`` each expert has a bias that affects
    selection but not the weights. Its gradient is the expert's load minus the mean, so the optimizer lowers
    the bias of overloaded experts. ``model.d_ff`` is the width of one expert. In bf16 on a GPU the experts
    run as grouped products without waiting for their loads, unless the activation has weights of its own.

    Equation: y = Σ_{i ∈ P} w_i E_i(x),  s = softmax(x W_router),  P = the top_k of s + b,
              w_i = s_i / Σ_{j ∈ P} s_j
              ∂L/∂b_i ∝ share of the tokens routed to i - top_k / n_experts
    Paper: Shazeer et al., 2017, eq. 1 to 5; Jiang et al., 2024, sec. 2.1; Wang et al., 2024 (the bias)
    When: there is memory for more parameters but not time for more computation
    Recipe: model: {feed_forward: {name: moe, n_experts: 8, top_k: 2, expert: swiglu}}
    Options:
      n_experts: number of experts
      top_k: experts per token
      expert: name of the feed-forward part that each expert is
      normalize: weights of the selected experts sum to 1; must be false with top_k 1, or no router learns
      balance: balance the load of the experts
      dropout: probability, on the inner activations
    """

    needs_padding_mask = True  # loads exclude padding
    shard_plan = ShardPlan(replicated_weights=("router", "balance"), parts=("experts",))

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        n_experts: Annotated[int, Field(ge=1, le=MAX_EXPERTS)] = 8,
        top_k: PositiveInt = 2,
        expert: str = "relu",
        normalize: bool = True,
        balance: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if expert == "moe":
            raise UserError("experts of feed_forward 'moe' must not be 'moe' themselves")
        if top_k > n_experts:
            raise UserError(
                f"top_k of feed_forward 'moe' must be from 1 to n_experts={n_experts}, not {top_k}"
            )
        if top_k == 1 and normalize and n_experts > 1:
            raise UserError(
                "feed_forward 'moe' with top_k=1 gives the selected expert the weight 1, so the router "
                "does not learn; set normalize: false"
            )
        self.top_k, self.normalize = top_k, normalize
        self.router = Router(d_model, n_experts, bias=False)
        part = Choice(expert, dropout=dropout)
        self.experts = nn.ModuleList(FEED_FORWARD.build(part, d_model, d_ff) for _ in range(n_experts))
        self.balance = nn.Parameter(torch.zeros(n_experts)) if balance else None
        # whether an expert without tokens has a gradient, of zero, so that all ranks have the same ones
        self.calls_idle_experts = False
        # sums a number over all ranks; the identity in a single process
        self.all_reduce_count: Callable[[int | Tensor], int | Tensor] = _identity_count

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C), 0 at padding."""
        is_token = None if pos is None else pos.expand(x.shape[:-1]) >= 0
        if is_traced() or (x.device.type != "cpu" and can_group(list(self.experts), x)):
            return self._apply_unread(x.reshape(-1, x.size(-1)), is_token).view_as(x)
        if is_token is None:
            return self.apply_experts(x.reshape(-1, x.size(-1))).view_as(x)
        return torch.zeros_like(x).masked_scatter(is_token[..., None], self.apply_experts(x[is_token]))

    def apply_experts(self, tokens: Tensor) -> Tensor:
        """(N, C) -> (N, C)."""
        calls_all = self.calls_idle_experts and torch.is_grad_enabled()
        if not (len(tokens) or calls_all):
            return tokens
        expert_ids, weights = self.route(tokens)
        order = expert_ids.flatten().argsort(stable=True)  # by expert
        loads = expert_ids.flatten().bincount(minlength=len(self.experts)).tolist()
        expert_inputs = tokens.index_select(0, order // self.top_k).split(loads)
        outputs = torch.cat(
            [
                _call_expert(expert, x)
                for expert, x in zip(self.experts, expert_inputs, strict=True)
                if len(x) or calls_all
            ]
        )
        token_outputs = outputs.index_select(0, order.argsort()).view(
            len(tokens), self.top_k, outputs.size(-1)
        )
        return (token_outputs * weights[..., None]).sum(1).to(tokens.dtype)

    def _apply_unread(self, tokens: Tensor, is_token: Tensor | None) -> Tensor:
        """``apply_experts`` without reading from the device which tokens are padding, and the loads.

        (N, C), (...) -> (N, C), 0 at padding, which experts read too.
        """
        is_token = None if is_token is None else is_token.reshape(-1)
        token_experts, weights = self.route(tokens, is_token)
        expert_ids, order = token_experts.flatten().sort(stable=True)
        inputs = tokens.index_select(0, order // self.top_k)
        experts = list(self.experts)
        outputs = (
            apply_grouped(experts, inputs, _count_loads(token_experts, len(experts), None))
            if can_group(experts, tokens)
            else apply_all(experts, inputs, expert_ids)
        )
        token_outputs = outputs.index_select(0, order.argsort()).view(len(tokens), self.top_k, -1)
        out = (token_outputs * weights[..., None]).sum(1).to(tokens.dtype)
        return out if is_token is None else out.masked_fill(~is_token[:, None], 0)

    def route(self, tokens: Tensor, is_token: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(N, C) -> experts of each token (N, top_k) and their weights, in fp32 at least.

        ``is_token`` (N,) is False at padding, which is no load.
        """
        scores = self.router(tokens)
        biased_scores = scores if self.balance is None else scores + self.balance.to(scores.dtype)
        expert_ids = biased_scores.topk(self.top_k, -1).indices
        weights = scores.gather(1, expert_ids)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.balance is not None and torch.is_grad_enabled():
            n_own_tokens = len(tokens) if is_token is None else is_token.sum()
            n_tokens = self.all_reduce_count(n_own_tokens)
            weights = _LoadBalancingLoss.apply(weights, self.balance, expert_ids, is_token, n_tokens)
        return expert_ids, weights


def _identity_count(count: int | Tensor) -> int | Tensor:
    return count


def _call_expert(expert: nn.Module, x: Tensor) -> Tensor:
    """(N, C) -> (N, C). Without tokens the gradients are zeros, not None: the input is then one zero row."""
    out: Tensor = expert(x) if len(x) else expert(x.new_zeros(1, x.size(-1)))[:0]
    return out


class _LoadBalancingLoss(torch.autograd.Function):
    """The identity on the weights; the gradient of each expert's bias is its load minus the mean.

    ``n_tokens`` is the number of tokens on all ranks, so that the gradients of all ranks add up to that of
    the whole batch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        balance: Tensor,
        expert_ids: Tensor,
        is_token: Tensor | None,
        n_tokens: int | Tensor,
    ) -> Tensor:
        n_own_tokens, top_k = len(expert_ids) if is_token is None else is_token.sum(), expert_ids.size(1)
        n_tokens = n_tokens.clamp(min=1) if isinstance(n_tokens, Tensor) else max(n_tokens, 1)
        load = _count_loads(expert_ids, len(balance), is_token) / n_tokens
        mean_load = top_k / len(balance) * (n_own_tokens / n_tokens)
        ctx.save_for_backward((load - mean_load).to(balance.dtype))
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (excess_load,) = ctx.saved_tensors
        return grad, BALANCE_GRAD_SCALE * excess_load, None, None, None


def _count_loads(expert_ids: Tensor, n_experts: int, is_token: Tensor | None) -> Tensor:
    """How many tokens each expert has, without a bincount, which reads the largest id: (N, top_k) -> (E,)."""
    counts = torch.ones_like(expert_ids) if is_token is None else is_token[:, None].expand_as(expert_ids)
    loads = expert_ids.new_zeros(n_experts)
    return loads.scatter_add(0, expert_ids.flatten(), counts.to(loads.dtype).flatten())
