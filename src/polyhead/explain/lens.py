"""What a model thinks on the way: the logit lens, and the share that each part has in a logit.

The lens reads the vectors after each layer as if it were the last: they go through the parts that follow the
last layer (nostalgebraist, 2020). The shares are those of direct logit attribution (Elhage et al., 2021): a
logit is linear in what the parts write once the scales of all norms after them are taken as constants, so
that the shares add up to it. Shapes: T tokens shown, K tokens of the vocabulary, C width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.explain.arrays import Array, ArrayReader
from polyhead.explain.search import round_float
from polyhead.explain.trace import Facts, Step, Trace
from polyhead.nn.norm import BatchNorm
from polyhead.tokenizers.display import spell_token
from polyhead.tokenizers.tokenizer import Tokenizer

LENS_TOKENS = 3  # guesses after each layer, and tokens whose logits are shared out


def explain_lens(
    trace: Trace, steps: Sequence[Step], layers: Sequence[Facts], output: Facts, tokenizer: Tokenizer
) -> Facts | None:
    """The guesses after each layer, and the shares in the logits; None for a model without an LM head.

    The array of the shares, (T, K, parts), is stored in the trace.
    """
    heads = [step for step in steps if step.kind == "head"]
    if not heads or not output.get("positions"):
        return None
    head, read = heads[-1], trace.store.make_reader()
    own = [layer for layer in layers if layer["side"] == head.place.side]
    if not own or not all(layer["in"] and layer["out"] for layer in own):
        return None
    tail = [step for step in steps[own[-1]["steps"][1] :] if step.place.side == head.place.side]
    expected = [one["expected"] and one["expected"]["id"] for one in output["positions"]]
    rows = [
        _describe_guesses(_read_out(tail, read(name)), expected)
        for name in (own[0]["in"], *(layer["out"] for layer in own))
    ]
    ids = [_choose_tokens(one) for one in output["positions"]]
    parts, shares, logits = share_logits(steps, head, read, np.array(ids))
    used = {i for row in rows for top in row["ids"] for i in top} | {i for top in ids for i in top}
    used |= {i for i in expected if i is not None}
    return {
        "side": head.place.side,
        "paths": [None, *(layer["path"] for layer in own)],
        "positions": [one["position"] for one in output["positions"]],
        "texts": {i: spell_token(tokenizer, i) if i <= tokenizer.max_id else f"<{i}>" for i in sorted(used)},
        "expected": expected,
        "rows": rows,
        "tokens": ids,
        "logits": [[round_float(x) for x in row] for row in logits.tolist()],
        "parts": parts,
        "shares": trace.store.store("lens.shares", shares),
    }


def _choose_tokens(position: Facts) -> list[int]:
    """The tokens whose logits are shared out: the best ones, and as the last one the true one."""
    best = [one["id"] for one in position["top"][:LENS_TOKENS]]
    true = position["expected"] and position["expected"]["id"]
    return best if true is None or true in best else [*best[: LENS_TOKENS - 1], true]


def _read_out(tail: Sequence[Step], x: Array) -> Tensor:
    """Logits (T, V) of vectors (T, C) by the parts that follow the last layer, up to the head."""
    y = torch.as_tensor(x).to(_module_of(tail[-1]).weight)[None]
    for step in tail:
        y = _module_of(step)(y)
    return y[0].double().cpu()


def _module_of(step: Step) -> Any:
    assert step.module is not None
    return step.module


def _describe_guesses(logits: Tensor, expected: Sequence[int | None]) -> Facts:
    """The most probable tokens of each row, and rank and probability of the true one."""
    log_p = logits.log_softmax(-1)
    top = log_p.topk(min(LENS_TOKENS, log_p.size(-1)))
    true = [
        None if i is None else (1 + int((row > row[i]).sum()), float(row[i].exp()))
        for row, i in zip(log_p, expected, strict=True)
    ]
    return {
        "ids": top.indices.tolist(),
        "p": [[round(p, 6) for p in row] for row in top.values.exp().tolist()],
        "rank": [one and one[0] for one in true],
        "p_expected": [one and round(one[1], 6) for one in true],
    }


class _Affine(NamedTuple):
    """A linear map and its bias, whatever module computes them."""

    weight: Array  # (out, in)
    bias: Array

    @classmethod
    def from_module(cls, module: nn.Module, width: int) -> _Affine:
        parameter = next(module.parameters(), None)
        rows = torch.cat([torch.zeros(1, width), torch.eye(width)])
        out = module(rows if parameter is None else rows.to(parameter)).double().cpu().numpy()
        return cls((out[1:] - out[0]).T, out[0])


def share_logits(
    steps: Sequence[Step], head: Step, read: ArrayReader, ids: Array
) -> tuple[list[Facts], Array, Array]:
    """Shares of every part in the logits of tokens (T, K): the parts, their shares (T, K, parts), the logits.

    The logits are those before a softcap.
    """
    module = _module_of(head)
    weight = module.weight[torch.as_tensor(ids)].detach().double().cpu().numpy() * module.scale
    walk = _Backward({step.out: step for step in steps if step.out}, read)
    if module.bias is not None:
        walk.bias += module.bias[torch.as_tensor(ids)].detach().double().cpu().numpy()
    x = read(cast(str, head.x)).astype(np.float64)
    logits = np.einsum("tkc,tc->tk", weight, x) + walk.bias
    walk.follow(head.x, weight)
    parts = [*reversed(walk.parts), ({"kind": "bias"}, walk.bias + np.zeros_like(logits))]
    return [facts for facts, _ in parts], np.stack([share for _, share in parts], -1), logits


class _Backward:
    """The way back along the residual path, with what a vector there adds to each logit: u (T, K, C)."""

    def __init__(self, makers: dict[str, Step], read: ArrayReader) -> None:
        self.makers, self.read = makers, read
        self.parts: list[tuple[Facts, Array]] = []
        self.bias: Any = 0.0  # of norms, output projections and the head

    def add(self, facts: Facts, vectors: Array, u: Array) -> None:
        """The share of what a part writes, (T, C)."""
        self.parts.append((facts, np.einsum("tkc,tc->tk", u, vectors.astype(np.float64))))

    def follow(self, name: str | None, u: Array) -> None:
        """From an array of the path to the embedding, or to a part without a residual."""
        while name is not None:
            step = self.makers.get(name)
            if step is None:
                self.add({"kind": "rest"}, self.read(name), u)
                return
            if step.kind == "residual":
                scale, skip = step.facts["scale"], step.facts["skip"]
                for role in reversed([role for role in step.values if role.startswith("branch")]):
                    self.follow_branch(step.values[role], scale * u)
                name, u = (step.values["x"] if skip else None), skip * u
            elif step.kind in ("norm", "projection", "activation"):
                name, u = self.cross(step, u)
            elif step.kind == "position":
                self.add({"kind": "position", "path": step.place.path}, self.read(step.values["rows"]), u)
                name = step.x
            else:
                self.add_part(step, u)
                return

    def follow_branch(self, name: str, u: Array) -> None:
        """What a residual adds: the output of a part, or a norm of it."""
        step = self.makers.get(name)
        while step is not None and step.kind == "norm":
            name, u = self.cross(step, u)
            step = self.makers.get(name)
        if step is None:
            self.add({"kind": "rest"}, self.read(name), u)
        else:
            self.add_part(step, u)

    def add_part(self, step: Step, u: Array) -> None:
        """The share of a part; of attention those of its heads."""
        place = {"kind": step.kind, "path": step.place.path}
        if "mix" not in step.values:
            self.add(place, self.read(step.out or ""), u)
            return
        mix = self.read(step.values["mix"])  # (H, T, D)
        o_proj = _Affine.from_module(_module_of(step).o_proj, mix.shape[0] * mix.shape[2])
        self.bias = self.bias + u @ o_proj.bias
        back = (u @ o_proj.weight).reshape(*u.shape[:2], mix.shape[0], -1)
        for h in reversed(range(len(mix))):
            self.add(place | {"head": h}, mix[h], back[:, :, h])

    def cross(self, step: Step, u: Array) -> tuple[str, Array]:
        """Through a norm with its scales as constants, a linear map, or an activation as a factor."""
        assert step.x is not None and step.out is not None
        if step.kind == "norm":
            return step.x, self._cross_norm(step, u)
        x, y = self.read(step.x), self.read(step.out)
        if step.kind == "activation":
            return step.x, u * np.divide(y, x, out=np.zeros_like(y), where=x != 0)[:, None]
        affine = _Affine.from_module(_module_of(step), x.shape[-1])
        self.bias = self.bias + u @ affine.bias
        return step.x, u @ affine.weight

    def _cross_norm(self, step: Step, u: Array) -> Array:
        read = {role: self.read(name).astype(np.float64) for role, name in step.values.items()}
        rate = 1 / np.sqrt(read.get("variance", read.get("mean_square")) + step.facts["eps"])
        self.bias = self.bias + u @ read.get("bias", np.zeros(u.shape[-1]))
        u = u * (read.get("weight", 1.0) + step.facts.get("zero_centered", False))
        if isinstance(step.module, BatchNorm):  # of each feature, not of each token
            self.bias = self.bias - u @ (read["mean"] * rate)
            return u * rate
        if "mean" in read:
            u = u - u.mean(-1, keepdims=True)
        return u * rate[:, None, None]
