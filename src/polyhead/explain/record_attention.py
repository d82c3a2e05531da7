"""Recorders of attention: queries, keys and values, scores and why some are hidden, weights.

They call the parts of an attention on the inputs of its real forward pass, as that does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.explain.part_notes import read_notes
from polyhead.explain.record_position import record_position
from polyhead.explain.trace import Call, Step, Trace, records, sizes
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.attention.linear import LinearAttention
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.device import at_least_fp32
from polyhead.nn.kv import KV, arange_positions, attention_mask, split_heads, visible
from polyhead.nn.position.base import Position
from polyhead.nn.position.disentangled import DisentangledPosition
from polyhead.nn.position.rope import Rope

PADDING, FUTURE, OUTSIDE_WINDOW, OTHER_DOCUMENT = 1, 2, 3, 4
"""Why a query does not see a key; 0: it does."""
_NOTHING = -1e3  # the log of no weight at all


class _AttentionInput(NamedTuple):
    """What an attention reads, and which of its queries and keys are shown."""

    x: Tensor
    pos: Tensor | None
    memory: Any
    position: Position  # prepared for this pass
    queries: slice
    keys: slice
    memory_side: int | None
    cut_side: tuple[int, int] | None  # the keys shown, if these are not all

    @classmethod
    def from_call(cls, trace: Trace, call: Call) -> _AttentionInput:
        """The inputs of one call. Cross-attention reads the first text."""
        x, memory = call.inputs["x"], call.inputs.get("memory")
        assert isinstance(call.module, Attention | KernelAttention | LinearAttention)
        position = call.inputs.get("position") or call.module.position
        memory_side = None if memory is None else 0
        side = call.place.side if memory_side is None else memory_side
        queries, keys = trace.window(call.place.side), trace.window(side)
        n_keys = x.size(1) if memory is None else (memory.k if isinstance(memory, KV) else x).size(2)
        cut = (keys.start, keys.stop) if trace.is_cut(side, n_keys) else None
        return cls(x, call.inputs.get("pos"), memory, position, queries, keys, memory_side, cut)


@records(Attention)
def record_softmax(trace: Trace, call: Call) -> None:
    """Softmax attention."""
    attn, at = call.module, _AttentionInput.from_call(trace, call)
    assert isinstance(attn, Attention)
    raw_q = attn.q_norm(split_heads(attn.q_proj(at.x), attn.head_dim))
    q = at.position.rotate(raw_q, at.pos)
    kv: KV = attn.project_kv(at.x, at.pos, at.position) if at.memory is None else at.memory
    group = q.size(1) // kv.k.size(1)
    window = attn.window if at.memory is None else None
    mask = attention_mask(at.pos, kv, at.x.size(1), attn.causal, window, own_tokens_only=at.memory is None)
    scale = attn.head_dim**-0.5 if attn.scale is None else attn.scale
    scores = q * scale @ kv.k.repeat_interleave(group, 1).mT
    scores = scores if attn.softcap is None else attn.softcap * torch.tanh(scores / attn.softcap)
    terms = _compute_bias(attn, at, q, kv)
    scores = sum(terms.values(), scores)
    hidden = explain_mask(mask, at.pos, kv, at.x.size(1), attn.causal, window is not None)
    hidden = hidden.repeat_interleave(group, 0) if len(hidden) > 1 else hidden

    values = _record_projections(trace, call, at, attn, raw_q, (q, kv))
    path = call.place.path
    values |= trace.store_all(
        path,
        {
            "scores": scores[0].masked_fill(hidden != 0, 0.0)[:, at.queries, at.keys],
            "hidden": hidden[:, at.queries, at.keys],
            **{role: _cut(term[0], at) for role, term in terms.items()},
        },
    )
    if len(terms) > 1:
        names = [values[role] for role in terms]
        shape = tuple(trace.store.shape(names[0]))
        values["bias"] = trace.store.derive(f"{path}.bias", shape, "add", args=names)
    weights = scores[0].masked_fill(hidden != 0, float("-inf")).softmax(-1).nan_to_num()
    if at.cut_side is not None:
        rest = scores[0].masked_fill(hidden != 0, float("-inf"))[:, at.queries].clone()
        rest[..., at.keys] = float("-inf")
        values |= _record_outside(trace, path, rest.logsumexp(-1).clamp(min=_NOTHING), weights, kv, at)
    values["weights"] = trace.store.derive(
        f"{path}.weights", (q.size(1), *trace.store.shape(values["hidden"])[1:]), "softmax",
        x=values["scores"], hidden=values["hidden"], outside=values.get("outside"),
    )  # fmt: skip
    if at.position.adds_values:
        term = at.position.values(weights[None], kv, at.pos)
        assert term is not None
        values["value_bias"] = trace.store.store(f"{path}.value_bias", term[0, :, at.queries])
    _derive_mix(trace, path, values, q.size(1), at)
    facts = _facts(attn) | {
        "scale": scale,
        "softcap": attn.softcap,
        "window": None if window is None else window.size,
        "sink": 0 if window is None else window.sink,
        "qk_norm": None if isinstance(attn.q_norm, nn.Identity) else type(attn.q_norm).__name__,
    }
    _add_step(trace, call, "attention", values, facts, at)


@records(KernelAttention)
def record_kernel(trace: Trace, call: Call) -> None:
    """Kernel attention, with similarities in place of scores."""
    attn, at = call.module, _AttentionInput.from_call(trace, call)
    assert isinstance(attn, KernelAttention)
    raw_q = split_heads(attn.q_proj(at.x), attn.head_dim)
    q = at.position.rotate(raw_q, at.pos)
    kv: KV = attn.project_kv(at.x, at.pos, at.position) if at.memory is None else at.memory
    group = q.size(1) // kv.k.size(1)
    mask = attention_mask(at.pos, kv, at.x.size(1), attn.causal, own_tokens_only=at.memory is None)
    hidden = explain_mask(mask, at.pos, kv, at.x.size(1), attn.causal, False)
    keys = at_least_fp32(kv.k).repeat_interleave(group, 1)
    similarity = attn.sim(at_least_fp32(q), keys)[0].masked_fill(hidden != 0, 0.0)

    values = _record_projections(trace, call, at, attn, raw_q, (q, kv))
    path, shown = call.place.path, similarity[:, at.queries, at.keys]
    values |= trace.store_all(path, {"similarity": shown, "hidden": hidden[:, at.queries, at.keys]})
    if at.cut_side is not None:
        rest = similarity[:, at.queries].sum(-1) - shown.sum(-1)
        weights = similarity / (similarity.sum(-1, keepdim=True) + attn.eps)
        values |= _record_outside(trace, path, rest, weights, kv, at)
    values["weights"] = trace.store.derive(
        f"{path}.weights", tuple(shown.shape), "ratio", x=values["similarity"], eps=attn.eps,
        outside=values.get("outside"),
    )  # fmt: skip
    _derive_mix(trace, path, values, q.size(1), at)
    facts = {"eps": attn.eps, "sim": attn.sim.__name__, "equation": read_notes(attn.sim)["equation"]}
    _add_step(trace, call, "attention", values, _facts(attn) | facts, at)


@records(LinearAttention)
def record_linear(trace: Trace, call: Call) -> None:
    """Linear attention: features of queries and keys, and the state into which the past is summed."""
    attn, at = call.module, _AttentionInput.from_call(trace, call)
    assert isinstance(attn, LinearAttention)
    features = attn.phi(at_least_fp32(split_heads(attn.q_proj(at.x), attn.head_dim)))
    arrays: dict[str, Tensor | None] = {"phi_q": at.position.rotate(features, at.pos)[0, :, at.queries]}
    if at.memory is None:
        record_position(trace, call.place, attn.position, at.pos, at.x.size(1))
        keys = attn.phi(at_least_fp32(split_heads(attn.k_proj(at.x), attn.head_dim)))
        arrays["phi_k"] = at.position.rotate(keys, at.pos)[0, :, at.keys]
        arrays["v"] = split_heads(attn.v_proj(at.x), attn.v_head_dim)[0, :, at.keys]
        seen = at.x[:, : at.queries.stop] if attn.causal else at.x
        sums = attn.project_kv(seen, None if at.pos is None else at.pos[:, : seen.size(1)]).sums
    else:
        sums = at.memory.sums
        arrays["phi_k"] = None if at.memory.keys is None else at.memory.keys[0, :, at.keys]
    arrays["state"] = torch.cat(sums, -1)[0]
    weights = call.inputs.get("weights")  # those that the forward pass reported
    arrays["weights"] = None if weights is None else weights[0, :, at.queries, at.keys]
    values = trace.store_all(call.place.path, arrays)
    facts = {"eps": attn.eps, "features": attn.n_features, "is_rotary": attn.is_rotary}
    _add_step(trace, call, "linear_attention", values, _facts(attn) | facts, at)


def explain_mask(
    mask: Tensor | None, pos: Tensor | None, kv: KV, length: int, causal: bool, has_window: bool
) -> Tensor:
    """Why each query does not see each key, as codes: (1|K, T, S) int64, 0 where it does."""
    k_pos, q_pos = kv.resolve_positions(), arange_positions(length, kv.k.device) if pos is None else pos
    seen = (visible(q_pos, k_pos, causal) if mask is None else mask)[0]
    size = (max(k_pos.size(1), seen.size(0)), length, k_pos.size(2))
    reason = OUTSIDE_WINDOW if has_window else OTHER_DOCUMENT
    codes = torch.full(size, reason, device=k_pos.device)
    is_future = (k_pos[0][:, None, :] > q_pos[0][None, :, None]) & causal
    codes = torch.where(is_future, FUTURE, codes)
    document = (q_pos[0] == 0).cumsum(0)
    if len(document) == size[2] and len(k_pos[0]) == 1 and bool((k_pos[0, 0] == q_pos[0]).all()):
        codes = torch.where(document[:, None] != document, OTHER_DOCUMENT, codes)
    codes = torch.where((k_pos[0] < 0)[:, None], PADDING, codes)
    return torch.where(seen, 0, codes)


def _record_projections(
    trace: Trace,
    call: Call,
    at: _AttentionInput,
    attn: Attention | KernelAttention,
    raw_q: Tensor,
    query_kv: tuple[Tensor, KV],
) -> dict[str, str]:
    """Store queries, keys and values; where they are rotated, what they are before, which gives the rest."""
    (q, kv), path, store = query_kv, call.place.path, trace.store
    values = trace.store_all(path, {"v": kv.v[0, :, at.keys]})
    if at.memory is None:
        tables = record_position(trace, call.place, attn.position, at.pos, at.x.size(1))
        # the row of the scheme's table that each pair of tokens uses, or the slope of each head
        values |= {role: tables[role] for role in ("index", "slopes") if role in tables}
    if at.memory is not None or at.position.kind != "heads":
        return values | trace.store_all(path, {"q": q[0, :, at.queries], "k": kv.k[0, :, at.keys]})
    raw_k = split_heads(attn.k_proj(at.x), attn.head_dim)
    raw_k = attn.k_norm(raw_k) if isinstance(attn, Attention) else raw_k
    raw = {"q_raw": raw_q[0, :, at.queries], "k_raw": raw_k[0, :, at.keys]}
    values |= trace.store_all(path, raw)
    if not isinstance(attn.position, Rope):
        return values | trace.store_all(path, {"q": q[0, :, at.queries], "k": kv.k[0, :, at.keys]})
    rotation = {"cos": tables["cos"], "sin": tables["sin"], "layout": attn.position.layout}
    for role in ("q", "k"):
        name, shape = values[f"{role}_raw"], tuple(raw[f"{role}_raw"].shape)
        values[role] = store.derive(f"{path}.{role}", shape, "rotate", x=name, **rotation)
    return values


def _compute_bias(attn: Attention, at: _AttentionInput, q: Tensor, kv: KV) -> dict[str, Tensor]:
    """What the position scheme adds to the scores: one term, ``bias``, or the two that it is the sum of."""
    if at.position.kind != "scores":
        return {}
    if isinstance(at.position, DisentangledPosition):
        terms = at.position.compute_terms(q, kv, at.pos, attn.scale, attn.project_qk)
        return terms if len(terms) > 1 else {"bias": next(iter(terms.values()))}
    bias = at.position.scores(q, kv, at.pos, attn.scale, attn.project_qk)
    return {} if bias is None else {"bias": bias}


def _record_outside(
    trace: Trace, path: str, rest: Tensor, weights: Tensor, kv: KV, at: _AttentionInput
) -> dict[str, str]:
    """What keys that are not shown add: to the denominator, ``rest`` [H, T], and to the mix of values."""
    others = weights[:, at.queries].clone()
    others[..., at.keys] = 0.0
    mix = others @ kv.v[0].to(others.dtype).repeat_interleave(len(others) // kv.v.size(1), 0)
    return trace.store_all(path, {"outside": rest, "outside_mix": mix})


def _derive_mix(trace: Trace, path: str, values: dict[str, str], n_heads: int, at: _AttentionInput) -> None:
    """Add the weighted sums of values of each head, and all heads side by side."""
    _, length, width = trace.store.shape(values["v"])
    length = at.queries.stop - at.queries.start
    plus = [values[role] for role in ("outside_mix", "value_bias") if role in values]
    values["mix"] = trace.store.derive(
        f"{path}.mix", (n_heads, length, width), "mix", weights=values["weights"], v=values["v"], plus=plus
    )
    values["joined"] = trace.store.derive(
        f"{path}.joined", (length, n_heads * width), "join", x=values["mix"]
    )


def _cut(x: Tensor, at: _AttentionInput) -> Tensor:
    """The shown queries and keys of (H, T, S); one row for all queries stays one."""
    rows = x if x.size(1) == 1 else x[:, at.queries]
    return rows[..., at.keys]


def _facts(attn: Any) -> dict[str, Any]:
    n_heads, n_kv_heads = (len(proj.weight) // attn.head_dim for proj in (attn.q_proj, attn.k_proj))
    tied = [role for role in "qkv" if getattr(attn, f"{role}_proj") is attn.k_proj]
    return {
        "causal": attn.causal,
        "heads": n_heads,
        "kv_heads": n_kv_heads,
        "head_dim": attn.head_dim,
        "v_head_dim": attn.v_head_dim,
        "tied": tied if len(tied) > 1 else [],
    }


def _add_step(
    trace: Trace, call: Call, kind: str, values: dict[str, str], facts: dict[str, Any], at: _AttentionInput
) -> None:
    path, side = call.place.path, call.place.side
    x = trace.name_tokens(at.x, f"{path}.in", side)
    out = trace.name_tokens(call.output, f"{path}.out", side)
    step = Step(call.place, kind, call.module, x, out, values, facts, at.memory_side)
    step.shape_in, step.shape_out = sizes(at.x), sizes(call.output)
    trace.add(step)
