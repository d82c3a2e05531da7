"""The largest terms of products with matrices, on the way from a logit down to the embedding.

The page has no matrices. It follows a logit from each number to the largest term of its sum; this goes the
same way, and writes down the largest terms of each product with a row of a matrix that it meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from polyhead.explain.arrays import Array, ArrayReader
from polyhead.explain.search import round_float
from polyhead.explain.trace import Facts, Step

N_TERMS = 3  # of each product


def list_largest_terms(
    steps: Sequence[Step],
    read: ArrayReader,
    parameters: Mapping[str, Tensor],
    logits: Iterable[tuple[int, int]],
) -> Facts:
    """Inputs and weights of the largest terms: {"path.role": {"token-row": [inputs, weights]}}.

    ``logits`` are rows of the last vectors with the number of a token.
    """
    descent = _Descent(steps, read, parameters)
    for row, token in logits:
        descent.follow_logit(row, token)
    return descent.terms


class _Descent:
    """The way from numbers to the largest terms of their sums, each written down once."""

    def __init__(self, steps: Sequence[Step], read: ArrayReader, parameters: Mapping[str, Tensor]) -> None:
        self.steps, self.read, self.parameters = steps, read, parameters
        self.makers = {step.out: step for step in reversed(steps) if step.out}
        self.terms: dict[str, dict[str, list[list[float]]]] = {}
        self._seen: set[tuple[str, int, int]] = set()

    def multiply(
        self, step: Step, role: str, t: int, row: int, x: Array, columns: Array | None = None
    ) -> int | None:
        """Write down the largest terms of x · W[row]; returns the input of the largest one.

        None without such a matrix. Of its row, ``columns`` are the inputs in x.
        """
        weight = self.parameters.get(step.facts.get("maps", {}).get(role, {}).get("weight"))
        if weight is None or weight.dim() != 2:
            return None
        w = weight[row].detach().double().cpu().numpy()
        w = w if columns is None else w[columns]
        best = np.argsort(-np.abs(x * w), kind="stable")[:N_TERMS]
        found = [best.tolist(), [round_float(float(w[i])) for i in best]]
        self.terms.setdefault(f"{step.place.path}.{role}", {})[f"{t}-{row}"] = found
        return int(best[0])

    def follow_logit(self, t: int, token: int) -> None:
        """From the logit of a token at row t."""
        head = next(step for step in reversed(self.steps) if step.kind == "head")
        assert head.x is not None
        c = self.multiply(head, "head", t, token, self.read(head.x)[t])
        if c is not None:
            self.follow(head.x, t, c)

    def follow(self, name: str, t: int, c: int) -> None:
        """From feature c of row t of an array of vectors."""
        while (name, t, c) not in self._seen:
            self._seen.add((name, t, c))
            writers = self.list_writers(name)
            name, _ = max(writers, key=lambda one: abs(one[1] * self.read(one[0])[t, c]))
            step = self.makers.get(name)
            if step is None or step.x is None or self.read(step.x).ndim != 2:
                return
            name, t, c = self.find_source(step, t, c) or (
                step.x,
                t,
                int(np.abs(self.read(step.x)[t]).argmax()),
            )

    def list_writers(self, name: str, factor: float = 1.0) -> list[tuple[str, float]]:
        """What was added up along the residual path to an array, with the factor of each."""
        step = self.makers.get(name)
        if step is None or step.kind not in ("residual", "position") or step.x is None:
            return [(name, factor)]
        if step.kind == "position":
            return [*self.list_writers(step.x, factor), (step.values["rows"], factor)]
        branches = [one for role, one in step.values.items() if role.startswith("branch")]
        path = self.list_writers(step.values["x"], factor * step.facts["skip"])
        return [*path, *((one, factor * step.facts["scale"]) for one in branches)]

    def find_source(self, step: Step, t: int, c: int) -> tuple[str, int, int] | None:
        """The feature of an input that a feature of the output is mostly from; None of other parts."""
        assert step.x is not None
        if step.kind in ("norm", "activation"):
            return step.x, t, c
        if step.kind == "attention":
            return self.cross_attention(step, t, c)
        i: int | None = None
        if step.kind == "projection":
            i = self.multiply(step, "proj", t, c, self.read(step.x)[t])
        elif step.kind == "feed_forward":
            units = self.read(step.values["unit"])[t].astype(int)
            hidden = self.read(step.values.get("hidden", step.values["act"]))[t]
            unit = self.multiply(step, "down", t, c, hidden, units)
            if unit is not None:
                role = "gate" if step.facts["is_gated"] else "up"
                i = self.multiply(step, role, t, int(units[unit]), self.read(step.x)[t])
        return None if i is None else (step.x, t, i)

    def cross_attention(self, step: Step, t: int, c: int) -> tuple[str, int, int] | None:
        """Through the output map, the value with the largest share, and the map of values."""
        mix, v = self.read(step.values["mix"]), self.read(step.values["v"])
        is_projected = step.facts["projected"]
        j = self.multiply(step, "o", t, c, self.read(step.values["joined"])[t]) if is_projected else c
        if j is None:
            return None
        head, j = divmod(j, mix.shape[2])
        kv = head * len(v) // len(mix)
        s = int(np.abs(self.read(step.values["weights"])[head, t] * v[kv, :, j]).argmax())
        name, row = self.name_keys(step), kv * mix.shape[2] + j
        i = self.multiply(step, "v", s, row, self.read(name)[s]) if is_projected else row
        return None if i is None else (name, s, i)

    def name_keys(self, step: Step) -> str:
        """The array of the vectors of which an attention makes keys and values."""
        if step.memory_side is None:
            assert step.x is not None
            return step.x
        outputs = [one.out for one in self.steps if one.place.side == step.memory_side and one.out]
        return outputs[-1]
