"""Recorders of attention and of its positions: queries, keys and values, scores and why some are hidden.

They call the parts of an attention on the inputs of its real forward pass, as that does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.explain.trace import Arrays, Call, Facts, LinearMap, Names, Step, records
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.attention.linear import LinearAttention
from polyhead.nn.attention.projections import NoProjection
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.device import at_least_fp32
from polyhead.nn.kv import KV, Window, arange_positions, attention_mask, split_heads, visible
from polyhead.nn.position.absolute import LearnedPosition, SinusoidalPosition
from polyhead.nn.position.base import Position
from polyhead.nn.position.disentangled import DisentangledPosition
from polyhead.nn.position.relative import Alibi, PairPosition, ScoreShape, Shaw, T5Bias
from polyhead.nn.position.rope import Rope


def record_position(call: Call, scheme: Position) -> Names:
    """Write down a scheme that acts inside of attention, before the first layer that uses it.

    Returns the names of its arrays.
    """
    trace, place = call.trace, call.place
    key = f"{place.stack or place.path}.position{id(scheme)}"
    if key in trace.schemes or scheme.kind not in ("heads", "scores"):
        return trace.schemes.get(key, {})
    role = f"{place.path}.position"
    arrays, facts = describe_scheme(scheme, call)
    values = trace.schemes[key] = trace.store_all(trace.unique_path(role), arrays)
    maps = {role: LinearMap(array) for role, array in arrays.items() if isinstance(array, nn.Parameter)}
    facts = {"kind": scheme.kind} | facts | call.describe_maps(maps)[1]
    place = place._replace(path=role, role="position")
    trace.steps.append(Step(place, "position", scheme, None, None, values, facts))
    return values


def describe_scheme(scheme: Position, call: Call) -> tuple[Arrays, Facts]:
    """The arrays and the settings of a scheme for the tokens of a call; nothing of one of a plugin."""
    for kind, describe in _SCHEMES.items():
        if isinstance(scheme, kind):
            return describe(scheme, call)
    return {}, {}


def _list_facts(scheme: Position, *names: str) -> Facts:
    return {name: getattr(scheme, name) for name in names}


def _describe_rope(scheme: Rope, call: Call) -> tuple[Arrays, Facts]:
    tables = scheme.prepare(call.pos, call.x.size(1), scheme.inv_freq.device, (1,)).tables[1]
    cos, sin = (table[0, call.window, 0] for table in tables)
    names = ("theta", "layout", "scaling", "factor", "attention_factor", "rotary_dim")
    return {"cos": cos, "sin": sin, "rate": scheme.inv_freq}, _list_facts(scheme, *names)


def _pair_index(scheme: PairPosition, call: Call) -> Tensor:
    """The row of the table for each pair of tokens shown: [T, S]."""
    pos, length = call.pos, call.x.size(1)
    size = ScoreShape(1, length, length, torch.device("cpu") if pos is None else pos.device)
    pairs = scheme.compute_pairs(pos, None if pos is None else pos[:, None], size, torch.float32)
    if isinstance(scheme, DisentangledPosition):  # in the part of the table that the text uses
        index, first, _ = pairs
        pairs = index + first
    shown: Tensor = pairs[0, 0, call.window, call.window]
    return shown


_SCHEMES: dict[type[Position], Callable[[Any, Call], tuple[Arrays, Facts]]] = {
    Rope: _describe_rope,
    Alibi: lambda scheme, call: ({"slopes": torch.tensor(scheme.slopes)}, {}),
    T5Bias: lambda scheme, call: (
        {"table": scheme.weight, "index": _pair_index(scheme, call)},
        _list_facts(scheme, "buckets", "max_distance", "causal"),
    ),
    Shaw: lambda scheme, call: (
        {
            "key": scheme.key,
            "value": scheme.value if scheme.adds_values else None,
            "index": _pair_index(scheme, call),
        },
        _list_facts(scheme, "clip"),
    ),
    DisentangledPosition: lambda scheme, call: (
        {"index": _pair_index(scheme, call)},
        _list_facts(scheme, "span", "max_distance", "terms"),
    ),
    SinusoidalPosition: lambda scheme, call: (
        {},
        _list_facts(scheme, "base", "layout", "endpoint", "offset"),
    ),
    LearnedPosition: lambda scheme, call: ({}, {"offset": scheme.offset, "rows": len(scheme.weight)}),
}

PADDING, FUTURE, OUTSIDE_WINDOW, OTHER_DOCUMENT = 1, 2, 3, 4
"""Why a query does not see a key; 0: it does."""
_NOTHING = -1e3  # the log of no weight at all


class _AttentionCall(NamedTuple):
    """A call of attention: what it reads, and which of its queries and keys are shown."""

    call: Call
    memory: Any
    position: Position  # prepared for this pass
    queries: slice
    keys: slice
    memory_side: int | None
    is_cut: bool  # whether some keys are not shown

    @classmethod
    def from_call(cls, call: Call, attn: Attention | KernelAttention | LinearAttention) -> _AttentionCall:
        """The inputs of one call. Cross-attention reads the first text."""
        memory = call.inputs.get("memory")
        memory_side = None if memory is None else 0
        side = call.place.side if memory_side is None else memory_side
        n_keys = (
            call.x.size(1) if memory is None else (memory.k if isinstance(memory, KV) else call.x).size(2)
        )
        position = call.inputs.get("position") or attn.position
        is_cut = call.trace.is_cut(side, n_keys)
        return cls(call, memory, position, call.window, call.trace.window(side), memory_side, is_cut)

    def project(
        self, attn: Attention | KernelAttention, raw_q: Tensor, window: Window | None = None
    ) -> tuple[Tensor, KV, Tensor, Tensor, Names]:
        """Rotated queries, keys and values, the keys of each query head, why they are hidden, and names.

        Stores queries, keys and values; where they are rotated, what they are before, which gives the rest.
        """
        call, is_self = self.call, self.memory is None
        q, length = self.position.rotate(raw_q, call.pos), call.x.size(1)
        kv: KV = attn.project_kv(call.x, call.pos, self.position) if is_self else self.memory
        mask = attention_mask(call.pos, kv, length, attn.causal, window, own_tokens_only=is_self)
        hidden = explain_mask(mask, call.pos, kv, length, attn.causal, window is not None)
        group = q.size(1) // kv.k.size(1)
        hidden = hidden.repeat_interleave(group, 0) if len(hidden) > 1 else hidden
        values = call.store({"v": kv.v[0, :, self.keys]})
        if is_self:
            tables = record_position(call, attn.position)
            # the row of the scheme's table that each pair of tokens uses, or the slope of each head
            values |= {role: tables[role] for role in ("index", "slopes") if role in tables}
        is_rotated = is_self and self.position.kind == "heads"
        if is_rotated:
            raw_k = split_heads(attn.k_proj(call.x), attn.head_dim)
            raw_k = attn.k_norm(raw_k) if isinstance(attn, Attention) else raw_k
            values |= call.store({"q_raw": raw_q[0, :, self.queries], "k_raw": raw_k[0, :, self.keys]})
        if is_rotated and isinstance(attn.position, Rope):
            rotation = {"cos": tables["cos"], "sin": tables["sin"], "layout": attn.position.layout}
            for role in ("q", "k"):
                name = values[f"{role}_raw"]
                values[role] = call.derive(role, call.trace.store.shape(name), "rotate", x=name, **rotation)
        else:
            values |= call.store({"q": q[0, :, self.queries], "k": kv.k[0, :, self.keys]})
        return q, kv, kv.k.repeat_interleave(group, 1), hidden, values

    def store_outside(self, rest: Tensor, weights: Tensor, kv: KV) -> Names:
        """What keys that are not shown add: to the denominator, ``rest`` [H, T], and to the mix of values."""
        others = weights[:, self.queries].clone()
        others[..., self.keys] = 0.0
        mix = others @ kv.v[0].to(others.dtype).repeat_interleave(len(others) // kv.v.size(1), 0)
        return self.call.store({"outside": rest, "outside_mix": mix})

    def cut(self, x: Tensor) -> Tensor:
        """The shown queries and keys of (H, T, S); one row for all queries stays one."""
        return (x if x.size(1) == 1 else x[:, self.queries])[..., self.keys]

    def add(self, kind: str, attn: Any, values: Names, facts: Facts) -> None:
        """Append the step; of a table of weights with the weighted sums of values, and all of them joined."""
        if kind == "attention":
            length = self.queries.stop - self.queries.start
            width = self.call.trace.store.shape(values["v"])[2]
            plus = [values[role] for role in ("outside_mix", "value_bias") if role in values]
            inputs = {"weights": values["weights"], "v": values["v"], "plus": plus}
            n_heads = self.call.trace.store.shape(values["weights"])[0]
            values["mix"] = self.call.derive("mix", (n_heads, length, width), "mix", **inputs)
            values["joined"] = self.call.derive("joined", (length, n_heads * width), "join", x=values["mix"])
        n_heads, n_kv_heads = (len(proj.weight) // attn.head_dim for proj in (attn.q_proj, attn.k_proj))
        common = {
            "causal": attn.causal,
            "heads": n_heads,
            "kv_heads": n_kv_heads,
            "head_dim": attn.head_dim,
            "v_head_dim": attn.v_head_dim,
            "projected": not isinstance(attn.q_proj, NoProjection),
        }
        if common["projected"]:
            maps = {role: getattr(attn, f"{role}_proj") for role in "qkvo"}
            biases, map_facts = self.call.describe_maps(maps)
            values, common = values | biases, common | map_facts
        self.call.add_tokens(kind, values, common | facts, self.memory_side)


@records(Attention)
def record_softmax(call: Call, attn: Attention) -> None:
    """Softmax attention."""
    at = _AttentionCall.from_call(call, attn)
    window = attn.window if at.memory is None else None
    raw_q = attn.q_norm(split_heads(attn.q_proj(call.x), attn.head_dim))
    q, kv, k, hidden, values = at.project(attn, raw_q, window)
    scale = attn.head_dim**-0.5 if attn.scale is None else attn.scale
    scores = q * scale @ k.mT
    scores = scores if attn.softcap is None else attn.softcap * torch.tanh(scores / attn.softcap)
    terms = _compute_bias(attn, at, q, kv)
    scores = sum(terms.values(), scores)[0]
    arrays = {"scores": scores.masked_fill(hidden != 0, 0.0), "hidden": hidden}
    arrays = {role: array[:, at.queries, at.keys] for role, array in arrays.items()}
    values |= call.store(arrays | {role: at.cut(term[0]) for role, term in terms.items()})
    if len(terms) > 1:
        names = [values[role] for role in terms]
        values["bias"] = call.derive("bias", call.trace.store.shape(names[0]), "add", args=names)
    masked = scores.masked_fill(hidden != 0, float("-inf"))
    weights = masked.softmax(-1).nan_to_num()
    if at.is_cut:
        rest = masked[:, at.queries].clone()
        rest[..., at.keys] = float("-inf")
        values |= at.store_outside(rest.logsumexp(-1).clamp(min=_NOTHING), weights, kv)
    values["weights"] = call.derive(
        "weights", (q.size(1), *arrays["hidden"].shape[1:]), "softmax",
        x=values["scores"], hidden=values["hidden"], outside=values.get("outside"),
    )  # fmt: skip
    if at.position.adds_values:
        term = at.position.values(weights[None], kv, call.pos)
        assert term is not None
        values |= call.store({"value_bias": term[0, :, at.queries]})
    facts = {
        "scale": scale,
        "softcap": attn.softcap,
        "window": None if window is None else window.size,
        "sink": 0 if window is None else window.sink,
        "qk_norm": None if isinstance(attn.q_norm, nn.Identity) else type(attn.q_norm).__name__,
    }
    at.add("attention", attn, values, facts)


@records(KernelAttention)
def record_kernel(call: Call, attn: KernelAttention) -> None:
    """Kernel attention, with similarities in place of scores."""
    at = _AttentionCall.from_call(call, attn)
    q, kv, k, hidden, values = at.project(attn, split_heads(attn.q_proj(call.x), attn.head_dim))
    similarity = attn.sim(at_least_fp32(q), at_least_fp32(k))[0].masked_fill(hidden != 0, 0.0)
    shown = similarity[:, at.queries, at.keys]
    values |= call.store({"similarity": shown, "hidden": hidden[:, at.queries, at.keys]})
    if at.is_cut:
        rest = similarity[:, at.queries].sum(-1) - shown.sum(-1)
        weights = similarity / (similarity.sum(-1, keepdim=True) + attn.eps)
        values |= at.store_outside(rest, weights, kv)
    values["weights"] = call.derive(
        "weights", shown.shape, "ratio", x=values["similarity"], eps=attn.eps, outside=values.get("outside")
    )
    at.add("attention", attn, values, {"eps": attn.eps, "sim": attn.sim.__name__})


@records(LinearAttention)
def record_linear(call: Call, attn: LinearAttention) -> None:
    """Linear attention: features of queries and keys, and the state into which the past is summed.

    Of a causal one it is the state after the last shown token, and ``start`` is the one before the first.
    """
    at, x, pos = _AttentionCall.from_call(call, attn), call.x, call.pos

    def map_heads(role: str, proj: nn.Module, tokens: slice) -> dict[str, Tensor]:
        """Features, and with rotary positions those of the denominator, which are not turned."""
        features = attn.phi(at_least_fp32(split_heads(proj(x), attn.head_dim)))
        maps = {f"phi_{role}": at.position.rotate(features, pos)}
        if attn.is_rotary:
            maps[f"norm_{role}"] = at.position.scale_only(features)
        return {name: features[0, :, tokens] for name, features in maps.items()}

    def sum_until(stop: int) -> Tensor:
        """The state after the first ``stop`` tokens."""
        tokens = None if pos is None else pos[:, :stop]
        return torch.cat(attn.project_kv(x[:, :stop], tokens).sums, -1)[0]

    arrays: dict[str, Tensor | None] = {**map_heads("q", attn.q_proj, at.queries)}
    if at.memory is None:
        record_position(call, attn.position)
        arrays |= map_heads("k", attn.k_proj, at.keys)
        arrays["v"] = split_heads(attn.v_proj(x), attn.v_head_dim)[0, :, at.keys]
        arrays["state"] = sum_until(at.queries.stop if attn.causal else x.size(1))
        if attn.causal and at.queries.start:
            arrays["start"] = sum_until(at.queries.start)
    else:
        arrays["phi_k"] = None if at.memory.keys is None else at.memory.keys[0, :, at.keys]
        arrays["state"] = torch.cat(at.memory.sums, -1)[0]
    weights = call.inputs.get("weights")  # those that the forward pass reported
    arrays["weights"] = None if weights is None else weights[0, :, at.queries, at.keys]
    facts = {"eps": attn.eps, "features": attn.n_features, "is_rotary": attn.is_rotary}
    at.add("linear_attention", attn, call.store(arrays), facts)


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


def _compute_bias(attn: Attention, at: _AttentionCall, q: Tensor, kv: KV) -> dict[str, Tensor]:
    """What the position scheme adds to the scores: one term, ``bias``, or the two that it is the sum of."""
    if at.position.kind != "scores":
        return {}
    inputs = q, kv, at.call.pos, attn.scale, attn.project_qk
    if isinstance(at.position, DisentangledPosition):
        terms = at.position.compute_terms(*inputs)
        return terms if len(terms) > 1 else {"bias": next(iter(terms.values()))}
    bias = at.position.scores(*inputs)
    return {} if bias is None else {"bias": bias}
