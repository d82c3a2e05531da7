"""Recorders of norms, feed-forward layers, recurrent and convolutional layers, maps and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.explain.record_attention import describe_scheme
from polyhead.explain.trace import Arrays, Call, Facts, LinearMap, Names, records, sizes
from polyhead.nn.block.convolution import ConvBlock
from polyhead.nn.block.recurrent import GRU, LSTM, RNN, RecurrentBlock
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS, ConvFeedForward, FeedForward, GatedFeedForward
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.norm import BatchNorm, LayerNorm, NoNorm, RMSNorm
from polyhead.nn.pooling import DenseMap, Pooler
from polyhead.nn.position.absolute import LearnedPosition

SHOWN_UNITS = 32  # of a feed-forward layer, for each token
CURVE_END, CURVE_BINS = 4.0, 32  # an activation is drawn from -4 to 4, with as many bins for its inputs


@records(LayerNorm)
def record_layernorm(call: Call, norm: LayerNorm) -> None:
    """Layer norm: mean and variance of each token."""
    parameters = {"weight": norm.weight, "bias": norm.bias}
    _record_norm(call, parameters, ("mean", "variance"), {"eps": norm.eps})


@records(RMSNorm)
def record_rmsnorm(call: Call, norm: RMSNorm) -> None:
    """RMS norm: the mean square of each token."""
    facts = {"eps": norm.eps, "zero_centered": norm.zero_centered}
    _record_norm(call, {"weight": norm.weight}, ("mean_square",), facts)


@records(BatchNorm)
def record_batchnorm(call: Call, norm: BatchNorm) -> None:
    """Batch norm: the running mean and variance of each feature."""
    running = {"mean": norm.running_mean, "variance": norm.running_var}
    _record_norm(call, {"weight": norm.weight, "bias": norm.bias, **running}, (), {"eps": norm.eps})


@records(NoNorm)
def record_nothing(call: Call, norm: NoNorm) -> None:
    """No norm is no step: its output is its input."""
    if known := call.trace.find(call.x):
        call.trace.bind(call.output, known)


def _record_norm(call: Call, parameters: Arrays, statistics: Sequence[str], facts: Facts) -> None:
    """A norm whose output the reader computes: from its parameters, and ``statistics`` of each token."""
    if call.x.dim() != 3:  # of the vector of a text
        record_other(call, call.module)
        return
    names = call.trace.parameter_names
    name, values = call.name(call.x, "in"), call.store(parameters)
    facts = facts | {"maps": {"norm": {role: names.get(id(p)) for role, p in parameters.items()}}}
    shape = call.trace.store.shape(name)
    for role in statistics:
        values[role] = call.derive(role, shape[:1], role, x=name)
    out = call.derive(
        "out",
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
    call.trace.bind(call.output, out)
    call.add("norm", name, out, values, facts)


@records(FeedForward, ConvFeedForward)
def record_feed_forward(call: Call, ffn: FeedForward | ConvFeedForward) -> None:
    """A plain feed-forward layer: the inputs and outputs of its activation."""
    pre = ffn.up_proj(call.x.mT).mT if isinstance(ffn, ConvFeedForward) else ffn.up_proj(call.x)
    act = ffn.activation(pre)
    _record_units(call, ffn, act, {"pre": pre, "act": act}, ("up", "down"))


@records(GatedFeedForward)
def record_gated(call: Call, ffn: GatedFeedForward) -> None:
    """A gated feed-forward layer: the gate before and after its activation, and what it lets through."""
    gate, up = ffn.gate_proj(call.x), ffn.up_proj(call.x)
    act = ffn.activation(gate)
    arrays = {"pre": gate, "act": act, "up": up, "hidden": act * up}
    _record_units(call, ffn, act * up, arrays, ("gate", "up", "down"))


def _record_units(
    call: Call,
    ffn: FeedForward | ConvFeedForward | GatedFeedForward,
    inner: Tensor,
    arrays: Mapping[str, Tensor],
    maps: Sequence[str],
) -> None:
    """The units that add most to each token: by their activation and the length of their output vector.

    Of all units the counts of their inputs in each bin, the first and the last for those beyond the curve.
    """
    lengths = ffn.down_proj.weight.flatten(1).norm(dim=0)
    inner = inner[0, call.window]
    unit = (inner * lengths).abs().topk(min(SHOWN_UNITS, inner.size(-1)), -1).indices
    rows = {role: array[0, call.window].gather(-1, unit) for role, array in arrays.items()}
    edges = torch.linspace(-CURVE_END, CURVE_END, CURVE_BINS + 1, device=inner.device)
    bins = torch.bucketize(arrays["pre"][0, call.window].float().contiguous(), edges, right=True)
    counts = torch.stack([row.bincount(minlength=CURVE_BINS + 2) for row in bins])
    curve = torch.linspace(-CURVE_END, CURVE_END, 2 * CURVE_BINS + 1).to(inner)
    rows |= {"counts": counts, "curve": ffn.activation(curve)}
    share = (arrays["act"][0, call.window] > 0).double().mean(-1)
    facts = {
        "units": inner.size(-1),
        "active": [round(x, 6) for x in share.tolist()],
        "activation": _name(ffn.activation),
        "is_gated": "up" in arrays,
    }
    values, map_facts = call.describe_maps({role: getattr(ffn, f"{role}_proj") for role in maps})
    call.add_tokens("feed_forward", call.store({"unit": unit, **rows}) | values, facts | map_facts)


@records(MixtureOfExperts)
def record_moe(call: Call, moe: MixtureOfExperts) -> None:
    """A mixture of experts: the router's logits, the experts of each token, their weights and outputs."""
    tokens = call.x[0, call.window]
    experts, weights = moe.route(tokens)
    logits = moe.router.compute_logits(tokens)
    written = [
        torch.cat([moe.experts[i](x[None]) for i in ids.tolist()])
        for x, ids in zip(tokens, experts, strict=True)
    ]
    arrays = {"expert": experts, "weight": weights, "logit": logits, "balance": moe.balance}
    values = call.store(arrays | {"written": torch.stack(written)})
    values["probability"] = call.derive(
        "probability", logits.shape, "softmax", x=values["logit"], hidden=None, outside=None
    )
    facts = {"experts": len(moe.experts), "top_k": moe.top_k, "expert": type(moe.experts[0]).__name__}
    maps, map_facts = call.describe_maps({"router": moe.router})
    down = [expert.down_proj for expert in moe.experts if isinstance(expert, FeedForward | GatedFeedForward)]
    if down and down[0].bias is not None:
        maps |= call.store({"down_bias": torch.stack([part.bias for part in down])})
    call.add_tokens("moe", values | maps, facts | map_facts | {"normalize": moe.normalize})


@records(RNN, LSTM, GRU)
def record_recurrent(call: Call, rnn: RNN | LSTM | GRU) -> None:
    """A recurrent network: its state after each token, step by step, and the sums of its gates."""
    x, state, shown = call.x, call.inputs["state"], call.window
    is_reverse = call.place.role == "reverse"
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
    arrays = dict(zip(("state", "cell"), after[:, shown], strict=False))
    arrays |= {role: gate[shown] for role, gate in gates.items()}
    # what the network has before the first shown token, in the order of reading
    arrays["start"] = before[-1, shown.stop - 1 if is_reverse else shown.start]
    values = call.store(arrays)
    if not is_reverse:
        call.trace.bind(call.output[0], values["state"])
    parent = call.inputs.get("parent")
    has_both = isinstance(parent, RecurrentBlock) and parent.reverse is not None
    facts = {"network": type(rnn).__name__, "units": rnn.hidden_size, "is_reverse": is_reverse}
    biases, map_facts = _describe_recurrent_maps(call, rnn)
    values, facts = values | biases, facts | map_facts
    # both networks read the same vectors, the reverse one after the other
    x_name = call.trace.steps[-1].x if is_reverse else call.name(x, "in")
    one_output = call._replace(output=call.output[0])
    one_output.add("recurrent", x_name, values["state"], values, facts | {"networks": 1 + has_both})


def _describe_recurrent_maps(call: Call, rnn: RNN | LSTM | GRU) -> tuple[Names, Facts]:
    """The two maps of the gates, and that of the source to the state before the first token."""
    x_weight, state_weight, *biases = rnn.all_weights[0]
    x_bias, state_bias = biases or (None, None)
    parent = call.inputs.get("parent")
    start = parent.start_proj if isinstance(parent, RecurrentBlock) else None
    gates = {"x": LinearMap(x_weight, x_bias), "state": LinearMap(state_weight, state_bias)}
    return call.describe_maps({**gates, "start": start})


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
def record_embedding(call: Call, embedding: Embedding) -> None:
    """The rows of the embedding, their scale and segment, the positions added to them, norm and map."""
    tokens = call.inputs["tokens"]
    segments = call.inputs.get("segments")
    trace = call.trace
    shown = call.window
    x = embedding.token(tokens)
    values = call.store({"rows": x[0, shown]})
    maps = {"token": embedding.token, "proj": embedding.token_proj, "segment": embedding.segment}
    _, map_facts = call.describe_maps(maps)
    shape = trace.store.shape(values["rows"])
    x = x * embedding.scale
    name = values["scaled"] = call.derive("scaled", shape, "scale", x=values["rows"], by=embedding.scale)
    if embedding.token_proj is not None:
        x = embedding.token_proj(x)
        values |= call.store({"projected": x[0, shown]})
        name = values["projected"]
    if embedding.segment is not None:
        segments = torch.zeros_like(tokens) if segments is None else segments
        segment = embedding.segment(segments)
        map_facts["segments"] = segments[0, shown].tolist()
        values |= call.store({"segment": segment[0, shown]})
        x = x + segment
        shape = trace.store.shape(name)
        name = call.derive("with_segment", shape, "add", args=[name, values["segment"]])
    call.add("embedding", None, name, values, {"scale": embedding.scale} | map_facts)
    scheme, place = embedding.position, call.place
    if scheme.kind == "embeddings":
        place = place._replace(path=f"{place.path}.position", role="position")
        added, before = scheme.embed(torch.zeros_like(x), call.pos)[0, shown], x
        x = scheme.embed(x, call.pos)
        of_scheme = call._replace(module=scheme, place=place, inputs=call.inputs | {"x": before}, output=x)
        rows, x_name = of_scheme.store({"rows": added}), name
        name = of_scheme.derive("out", added.shape, "add", args=[x_name, rows["rows"]])
        facts = {"kind": "embeddings"} | describe_scheme(scheme, of_scheme)[1]
        if isinstance(scheme, LearnedPosition):
            facts |= of_scheme.describe_maps({"rows": LinearMap(scheme.weight)})[1]
        of_scheme.add("position", x_name, name, rows, facts)
    trace.bind(x, name)
    for role in ("norm", "proj"):
        part = getattr(embedding, role)
        if part is not None:
            out = part(x, call.pos) if role == "norm" else part(x)
            place = call.place._replace(path=f"{call.place.path}.{role}", role=role)
            trace.record(Call(trace, part, place, {"x": x}, out))
            x = out
    last = trace.find(x)
    assert last is not None
    trace.bind(call.output, last)


@records(Head)
def record_head(call: Call, head: Head) -> None:
    """The LM head; its logits are the output of the walk."""
    facts = {"scale": head.scale, "softcap": head.softcap}
    values, map_facts = call.describe_maps({"head": head})
    call.add("head", call.name(call.x, "in"), None, values, facts | map_facts)


@records(Pooler)
def record_pooler(call: Call, pooler: Pooler) -> None:
    """The pooled vector of a text."""
    name, values = call.name(call.x, "in"), call.store({"pooled": call.output[0]})
    map_facts: Facts = {}
    if pooler.proj is not None and pooler.map_first:  # of each token, with activation and norm
        values |= call.store({"mapped": pooler.apply_map(call.x, call.pos)[0, call.window]})
    elif pooler.proj is not None:
        biases, map_facts = call.describe_maps({"proj": pooler.proj})
        values |= biases | call.store({"sum": pooler.proj(pooler.pool(call.x, call.pos))[0]})
    pooled = call.trace.bind(call.output, values["pooled"])
    facts = {"pooling": _name(pooler.pool), "map_first": pooler.map_first}
    facts |= {"activation": _name(pooler.activation), "norm": _name(pooler.norm)}
    call.add("pooling", name, pooled, values, facts | map_facts)


@records(nn.Linear, DenseMap)
def record_projection(call: Call, projection: nn.Linear | DenseMap) -> None:
    """A linear map; of a convolutional block its convolution: values, and gates before the sigmoid."""
    steps, parent = call.trace.steps, call.inputs.get("parent")
    if isinstance(parent, ConvBlock):
        maps = zip(("value", "gate"), call.output[0, call.window].split(parent.width, -1), strict=False)
        facts = {"kernel": parent.kernel, "left": parent.left_context, "activation": _name(parent.activation)}
        biases, map_facts = call.describe_maps({"conv": projection})
        call.add("conv", None, None, call.store(dict(maps)) | biases, facts | map_facts)
        return
    before = steps[-1] if steps else None
    _record_ends(call, "projection")
    linear = projection.proj if isinstance(projection, DenseMap) else projection
    activation = _name(projection.activation) if isinstance(projection, DenseMap) else None
    values, facts = call.describe_maps({"proj": linear})
    if activation is not None:
        values |= call.store({"sum": linear(call.x)[0]})
    steps[-1].values |= values
    steps[-1].facts |= facts | {"activation": activation}
    if before is not None and before.kind == "recurrent":  # of both directions side by side
        before.out, before.shape_out = steps[-1].x, sizes(call.x)


@records(*{type(make()) for make in MLP_ACTIVATIONS.values()})
def record_activation(call: Call, activation: nn.Module) -> None:
    """The activation of a head's transform."""
    _record_ends(call, "activation")
    call.trace.steps[-1].facts["activation"] = _name(activation)


@records(nn.Module)
def record_other(call: Call, module: nn.Module) -> None:
    """A part of any other kind: what goes in and what comes out, and weights of attention that it reports."""
    _record_ends(call, "unknown")


def _record_ends(call: Call, kind: str) -> None:
    trace, length = call.trace, call.trace.lengths[call.place.side]
    names: list[str | None] = []
    for end, tensor in (("in", call.inputs.get("x")), ("out", call.output)):
        name = None
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim() >= 2:
            has_tokens = tensor.dim() >= 3 and tensor.size(1) == length  # else the vector of a text
            name = trace.find(tensor) or trace.bind(
                tensor, call.store({end: tensor[0, call.window] if has_tokens else tensor[0]})[end]
            )
        names.append(name)
    weights, values = call.inputs.get("weights"), {}
    if weights is not None:
        keys = call.window if call.inputs.get("memory") is None else trace.window(0)
        values = call.store({"weights": weights[0, :, call.window, keys]})
    call.add(kind, names[0], names[1], values, {})


def _name(function: Callable[..., Any] | None) -> str | None:
    """The name of a function or the class of a module."""
    if function is None or isinstance(function, nn.Module):
        form = " (tanh)" if isinstance(function, nn.GELU) and function.approximate == "tanh" else ""
        return None if function is None else type(function).__name__ + form
    return getattr(function, "__name__", type(function).__name__)
