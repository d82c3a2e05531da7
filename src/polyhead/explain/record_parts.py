"""Recorders of norms, feed-forward layers, recurrent and convolutional layers, maps and heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.explain.record_position import Tokens, describe_scheme
from polyhead.explain.trace import Call, Step, Trace, records, sizes
from polyhead.nn.block.gated_conv import GatedConvBlock
from polyhead.nn.block.recurrent import GRU, LSTM, RNN, RecurrentBlock
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS, ConvFeedForward, FeedForward, GatedFeedForward
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.norm import BatchNorm, LayerNorm, NoNorm, RMSNorm
from polyhead.nn.pooling import DenseMap, Pooler

SHOWN_UNITS = 32  # of a feed-forward layer, for each token

Parameters = dict[str, Tensor | None]


@records(LayerNorm)
def record_layernorm(trace: Trace, call: Call) -> None:
    """Layer norm: mean and variance of each token."""
    norm = call.module
    assert isinstance(norm, LayerNorm)
    parameters: Parameters = {"weight": norm.weight, "bias": norm.bias}
    _record_norm(trace, call, parameters, {"mean": "mean", "variance": "variance"}, {"eps": norm.eps})


@records(RMSNorm)
def record_rmsnorm(trace: Trace, call: Call) -> None:
    """RMS norm: the mean square of each token."""
    norm = call.module
    assert isinstance(norm, RMSNorm)
    facts = {"eps": norm.eps, "zero_centered": norm.zero_centered}
    _record_norm(trace, call, {"weight": norm.weight}, {"mean_square": "mean_square"}, facts)


@records(BatchNorm)
def record_batchnorm(trace: Trace, call: Call) -> None:
    """Batch norm: the running mean and variance of each feature."""
    norm = call.module
    assert isinstance(norm, BatchNorm)
    running = {"mean": norm.running_mean, "variance": norm.running_var}
    _record_norm(trace, call, {"weight": norm.weight, "bias": norm.bias, **running}, {}, {"eps": norm.eps})


@records(NoNorm)
def record_nothing(trace: Trace, call: Call) -> None:
    """No norm is no step: its output is its input."""
    known = trace.find(call.inputs["x"])
    if known is not None:
        trace.bind(call.output, known)


def _record_norm(
    trace: Trace, call: Call, parameters: Parameters, statistics: dict[str, str], facts: dict[str, Any]
) -> None:
    """A norm whose output the reader computes: from its parameters, and ``statistics`` of each token."""
    path, side, x = call.place.path, call.place.side, call.inputs["x"]
    if x.dim() != 3:  # of the vector of a text
        record_other(trace, call)
        return
    name = trace.name_tokens(x, f"{path}.in", side)
    values = trace.store_all(path, parameters)
    shape = tuple(trace.store.shape(name))
    for role, op in statistics.items():
        values[role] = trace.store.derive(f"{path}.{role}", shape[:1], op, x=name)
    out = trace.store.derive(
        f"{path}.out",
        shape,
        "norm",
        x=name,
        mean=values.get("mean"),
        spread=values["variance" if "variance" in values else "mean_square"],
        weight=values.get("weight"),
        bias=values.get("bias"),
        eps=facts["eps"],
        by="token" if statistics else "feature",
        plus_one=facts.get("zero_centered", False),
    )
    trace.bind(call.output, out)
    _add(trace, call, "norm", name, out, values, facts)


@records(FeedForward, ConvFeedForward)
def record_feed_forward(trace: Trace, call: Call) -> None:
    """A plain feed-forward layer: the inputs and outputs of its activation."""
    ffn, x = call.module, call.inputs["x"]
    assert isinstance(ffn, FeedForward | ConvFeedForward)
    pre = ffn.up_proj(x.mT).mT if isinstance(ffn, ConvFeedForward) else ffn.up_proj(x)
    act = ffn.activation(pre)
    _record_units(trace, call, act, {"pre": pre, "act": act})


@records(GatedFeedForward)
def record_gated(trace: Trace, call: Call) -> None:
    """A gated feed-forward layer: the gate before and after its activation, and what it lets through."""
    ffn, x = call.module, call.inputs["x"]
    assert isinstance(ffn, GatedFeedForward)
    gate, up = ffn.gate_proj(x), ffn.up_proj(x)
    act = ffn.activation(gate)
    _record_units(trace, call, act * up, {"pre": gate, "act": act, "up": up, "hidden": act * up})


def _record_units(trace: Trace, call: Call, inner: Tensor, arrays: dict[str, Tensor]) -> None:
    """The units that add most to each token: by their activation and the length of their output vector."""
    ffn, shown = call.module, trace.window(call.place.side)
    assert isinstance(ffn, FeedForward | ConvFeedForward | GatedFeedForward)
    lengths = ffn.down_proj.weight.flatten(1).norm(dim=0)
    inner = inner[0, shown]
    unit = (inner * lengths).abs().topk(min(SHOWN_UNITS, inner.size(-1)), -1).indices
    rows: Parameters = {role: array[0, shown].gather(-1, unit) for role, array in arrays.items()}
    values = trace.store_all(call.place.path, {"unit": unit, **rows})
    share = (arrays["act"][0, shown] > 0).double().mean(-1)
    facts = {
        "units": inner.size(-1),
        "active": [round(x, 6) for x in share.tolist()],
        "activation": _name(ffn.activation),
        "is_gated": "up" in arrays,
    }
    _add_tokens(trace, call, "feed_forward", values, facts)


@records(MixtureOfExperts)
def record_moe(trace: Trace, call: Call) -> None:
    """A mixture of experts: the router's logits, the experts of each token and their weights."""
    moe, side = call.module, call.place.side
    assert isinstance(moe, MixtureOfExperts)
    tokens = call.inputs["x"][0, trace.window(side)]
    experts, weights = moe.route(tokens)
    path, logits = call.place.path, moe.router.compute_logits(tokens)
    arrays = {"expert": experts, "weight": weights, "logit": logits, "balance": moe.balance}
    arrays["written"] = torch.stack(
        [_apply_experts(moe, x, ids) for x, ids in zip(tokens, experts, strict=True)]
    )
    values = trace.store_all(path, arrays)
    values["probability"] = trace.store.derive(
        f"{path}.probability", tuple(logits.shape), "softmax", x=values["logit"], hidden=None, outside=None
    )
    facts = {"experts": len(moe.experts), "top_k": moe.top_k, "expert": type(moe.experts[0]).__name__}
    facts["normalize"] = moe.normalize
    _add_tokens(trace, call, "moe", values, facts)


def _apply_experts(moe: MixtureOfExperts, x: Tensor, ids: Tensor) -> Tensor:
    """What each chosen expert writes for one token: (C,), (top_k,) -> (top_k, C)."""
    return torch.cat([moe.experts[i](x[None]) for i in ids.tolist()])


@records(RNN, LSTM, GRU)
def record_recurrent(trace: Trace, call: Call) -> None:
    """A recurrent network: its state after each token, step by step, and the sums of its gates."""
    rnn, x, state = call.module, call.inputs["x"], call.inputs["state"]
    assert isinstance(rnn, RNN | LSTM | GRU)
    is_reverse, shown = call.place.role == "reverse", trace.window(call.place.side)
    states = [torch.stack(state)]
    for t in range(x.size(1)):
        _, state = rnn(x[:, t : t + 1], state)
        states.append(torch.stack(state))  # (n_states, B, H)
    steps = torch.stack(states, 2)[:, 0]  # (n_states, 1 + T, H), in the order of reading
    gates = _compute_gates(rnn, x[0], steps[0, :-1])
    before, after = steps[:, :-1], steps[:, 1:]
    if is_reverse:
        before, after = before.flip(1), after.flip(1)
        gates = {role: gate.flip(0) for role, gate in gates.items()}
    arrays: Parameters = dict(zip(("state", "cell"), after[:, shown], strict=False))
    arrays |= {role: gate[shown] for role, gate in gates.items()}
    # what the network has before the first shown token, in the order of reading
    arrays["start"] = before[-1, shown.stop - 1 if is_reverse else shown.start]
    values = trace.store_all(call.place.path, arrays)
    if not is_reverse:
        trace.bind(call.output[0], values["state"])
    parent = call.inputs.get("parent")
    has_both = isinstance(parent, RecurrentBlock) and parent.reverse is not None
    facts = {"network": type(rnn).__name__, "units": rnn.hidden_size, "is_reverse": is_reverse}
    facts["networks"] = 1 + has_both
    # both networks read the same vectors, the reverse one after the other
    x_name = (
        trace.steps[-1].x if is_reverse else trace.name_tokens(x, f"{call.place.path}.in", call.place.side)
    )
    step = Step(call.place, "recurrent", rnn, x_name)
    step.values, step.facts, step.out = values, facts, values["state"]
    step.shape_in, step.shape_out = sizes(x), sizes(call.output[0])
    trace.add(step)


def _compute_gates(rnn: RNN | LSTM | GRU, x: Tensor, states: Tensor) -> dict[str, Tensor]:
    """The sums that enter the gates, by the letters of the equations, (T, H) each.

    ``x`` is (T, C), ``states`` are those before each token, (T, H).
    """
    x_weight, state_weight, *biases = rnn.all_weights[0]
    x_bias, state_bias = biases or (None, None)
    from_x, from_state = F.linear(x, x_weight, x_bias), F.linear(states, state_weight, state_bias)
    if isinstance(rnn, GRU):  # its reset gate acts on what the candidate has of the state
        *_, a = from_x.chunk(3, -1)
        *_, u = from_state.chunk(3, -1)
        r, z, _ = (from_x + from_state).chunk(3, -1)
        return {"r": r, "z": z, "a": a, "u": u}
    letters = "ifgo" if isinstance(rnn, LSTM) else "a"
    return dict(zip(letters, (from_x + from_state).chunk(len(letters), -1), strict=True))


@records(Embedding)
def record_embedding(trace: Trace, call: Call) -> None:
    """The rows of the embedding, their scale and segment, the positions added to them, norm and map."""
    embedding, path, side = call.module, call.place.path, call.place.side
    assert isinstance(embedding, Embedding)
    tokens, pos, segments = (call.inputs.get(name) for name in ("tokens", "pos", "segments"))
    assert tokens is not None
    shown, store = trace.window(side), trace.store
    x = embedding.token(tokens)
    values = trace.store_all(path, {"rows": x[0, shown]})
    shape = tuple(store.shape(values["rows"]))
    x, name = x * embedding.scale, f"{path}.scaled"
    values["scaled"] = store.derive(name, shape, "scale", x=values["rows"], by=embedding.scale)
    if embedding.token_proj is not None:
        x = embedding.token_proj(x)
        name = values["projected"] = store.store(f"{path}.projected", x[0, shown])
    shape = tuple(store.shape(name))
    if embedding.segment is not None:
        segment = embedding.segment(torch.zeros_like(tokens) if segments is None else segments)
        values["segment"] = store.store(f"{path}.segment", segment[0, shown])
        x = x + segment
        name = store.derive(f"{path}.with_segment", shape, "add", args=[name, values["segment"]])
    _add(trace, call, "embedding", None, name, values, {"scale": embedding.scale})
    if embedding.position.kind == "embeddings":
        added = embedding.position.embed(torch.zeros_like(x), pos)
        x = embedding.position.embed(x, pos)
        name = _record_added_position(trace, call, embedding, name, added[0, shown])
    trace.bind(x, name)
    for role in ("norm", "proj"):
        part = getattr(embedding, role)
        if part is not None:
            out = part(x, pos) if role == "norm" else part(x)
            place = call.place._replace(path=f"{path}.{role}", role=role)
            trace.record(Call(part, place, {"x": x}, out))
            x = out
    last = trace.find(x)
    assert last is not None
    trace.bind(call.output, last)


def _record_added_position(trace: Trace, call: Call, embedding: Embedding, x: str, rows: Tensor) -> str:
    """The rows of positions that are added to the embeddings; returns the name of the sum."""
    path, tokens = f"{call.place.path}.position", call.inputs["tokens"]
    values = trace.store_all(path, {"rows": rows})
    out = trace.store.derive(f"{path}.out", tuple(rows.shape), "add", args=[x, values["rows"]])
    step = Step(
        call.place._replace(path=path, role="position"), "position", embedding.position, x, out, values
    )
    described = Tokens(call.inputs.get("pos"), tokens.size(1), trace.window(call.place.side))
    step.facts = {"kind": "embeddings"} | describe_scheme(embedding.position, described)[1]
    step.shape_in = step.shape_out = [tokens.size(1), rows.size(1)]
    trace.add(step)
    return out


@records(Head)
def record_head(trace: Trace, call: Call) -> None:
    """The LM head; its logits are the output of the walk."""
    head = call.module
    assert isinstance(head, Head)
    name = trace.name_tokens(call.inputs["x"], f"{call.place.path}.in", call.place.side)
    facts = {"scale": head.scale, "softcap": head.softcap, "has_bias": head.bias is not None}
    _add(trace, call, "head", name, None, {}, facts)


@records(Pooler)
def record_pooler(trace: Trace, call: Call) -> None:
    """The pooled vector of a text."""
    pooler = call.module
    assert isinstance(pooler, Pooler)
    name = trace.name_tokens(call.inputs["x"], f"{call.place.path}.in", call.place.side)
    pooled = trace.bind(call.output, trace.store.store(f"{call.place.path}.pooled", call.output[0]))
    facts = {"pooling": _name(pooler.pool), "map_first": pooler.map_first}
    facts |= {"activation": _name(pooler.activation), "norm": _name(pooler.norm)}
    _add(trace, call, "pooling", name, pooled, {"pooled": pooled}, facts)


@records(nn.Linear, DenseMap)
def record_projection(trace: Trace, call: Call) -> None:
    """A linear map; that of a convolutional block has the windows of its convolution as inputs."""
    if isinstance(call.inputs.get("parent"), GatedConvBlock):
        _record_convolution(trace, call)
        return
    before = trace.steps[-1] if trace.steps else None
    _record_ends(trace, call, "projection")
    trace.steps[-1].facts["activation"] = _name(
        call.module.activation if isinstance(call.module, DenseMap) else None
    )
    if before is not None and before.kind == "recurrent":  # of both directions side by side
        before.out, before.shape_out = trace.steps[-1].x, sizes(call.inputs["x"])


def _record_convolution(trace: Trace, call: Call) -> None:
    """The gated convolution of a block: the values, and the gates before the logistic function."""
    side, block = call.place.side, call.inputs["parent"]
    assert isinstance(block, GatedConvBlock)
    value, gate = call.output[0, trace.window(side)].chunk(2, -1)
    values = trace.store_all(call.place.path, {"value": value, "gate": gate})
    facts = {"kernel": block.kernel, "left": block.left_context}
    _add(trace, call, "conv", None, None, values, facts)


@records(*{type(make()) for make in MLP_ACTIVATIONS.values()})
def record_activation(trace: Trace, call: Call) -> None:
    """The activation of a head's transform."""
    _record_ends(trace, call, "activation")


@records(nn.Module)
def record_other(trace: Trace, call: Call) -> None:
    """A part of any other kind: what goes in and what comes out, and weights of attention that it reports."""
    _record_ends(trace, call, "unknown")


def _record_ends(trace: Trace, call: Call, kind: str) -> None:
    path, side, x = call.place.path, call.place.side, call.inputs.get("x")
    length = trace.lengths[side]
    names = [
        trace.find(tensor)
        or trace.bind(tensor, trace.store.store(f"{path}.{end}", _show(tensor, trace, side, length)))
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim() >= 2
        else None
        for end, tensor in (("in", x), ("out", call.output))
    ]
    weights = call.inputs.get("weights")
    values = {}
    if weights is not None:
        key_side = side if call.inputs.get("memory") is None else 0
        values = trace.store_all(path, {"weights": weights[0, :, trace.window(side), trace.window(key_side)]})
    _add(trace, call, kind, names[0], names[1], values, {})


def _show(tensor: Tensor, trace: Trace, side: int, length: int) -> Tensor:
    """The tokens shown of a tensor (1, T, ...), or the vector of a text as it is."""
    return tensor[0, trace.window(side)] if tensor.dim() >= 3 and tensor.size(1) == length else tensor[0]


def _name(function: Callable[..., Any] | None) -> str | None:
    """The name of a function or the class of a module."""
    if function is None or isinstance(function, nn.Module):
        return None if function is None else type(function).__name__
    return getattr(function, "__name__", type(function).__name__)


def _add_tokens(trace: Trace, call: Call, kind: str, values: dict[str, str], facts: dict[str, Any]) -> None:
    """Add a step whose input and output are tokens."""
    path, side = call.place.path, call.place.side
    x = trace.name_tokens(call.inputs["x"], f"{path}.in", side)
    _add(trace, call, kind, x, trace.name_tokens(call.output, f"{path}.out", side), values, facts)


def _add(
    trace: Trace,
    call: Call,
    kind: str,
    x: str | None,
    out: str | None,
    values: dict[str, str],
    facts: dict[str, Any],
) -> None:
    step = Step(call.place, kind, call.module, x, out, values, facts)
    step.shape_in, step.shape_out = sizes(call.inputs.get("x", call.inputs.get("tokens"))), sizes(call.output)
    trace.add(step)
