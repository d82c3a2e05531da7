"""The interface of a lever, and the comparison of its output with that of the plain model, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import isfinite
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.explain.levers.lever_input import LeverInput, copy_modules
from polyhead.models import Model

TOP_K = 10  # tokens that are listed of each row
SHOWN_TERMS = 2  # of a sum: of a KL divergence those of the most likely tokens


def compute_kl(logits: Tensor, baseline: Tensor) -> Tensor:
    """KL(p || q) in nats of each row, p = softmax(baseline) and q = softmax(logits): (R, V) -> (R,) fp64.

    Equation: Σ_v p_v (ln p_v - ln q_v). It is infinite if q excludes a token (logit -inf), as top-k and top-p
    do.
    """
    return _sum_kl(baseline.double().log_softmax(-1), logits.double().log_softmax(-1))


def _sum_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    terms = log_p.exp() * (log_p - log_q)
    return terms.where(log_p.exp() > 0, 0.0).sum(-1)


def rank_references(logits: Tensor, references: Sequence[int]) -> list[int]:
    """The rank of a token in each row, 1 for the most likely; of equal logits all have the best rank."""
    own = logits.gather(-1, torch.tensor(references)[:, None])
    ranks: list[int] = ((logits > own).sum(-1) + 1).tolist()
    return ranks


def describe_output(logits: Tensor, references: Sequence[int], top_k: int = TOP_K) -> dict[str, Any]:
    """The most likely tokens of each row of (R, V), and rank and probability of its reference.

    ``logsumexp`` is the logarithm of the sum of exp(logit), which with a probability gives its logit.
    """
    return _describe_log_probs(logits, logits.double().log_softmax(-1), references, top_k)[0]


def _describe_log_probs(
    logits: Tensor, log_p: Tensor, references: Sequence[int], top_k: int
) -> tuple[dict[str, Any], Tensor]:
    """The description, and the ids of the most likely tokens (R, k)."""
    top, ids = log_p.topk(min(top_k, log_p.size(-1)))
    own = log_p.gather(-1, torch.tensor(references)[:, None])[:, 0]
    log_sum = logits.gather(-1, ids[:, :1])[:, 0] - top[:, 0]
    description = {
        "top": {"ids": ids.tolist(), "p": [round_numbers(row) for row in top.exp().tolist()]},
        "rank": rank_references(logits, references),
        "p": round_numbers(own.exp().tolist()),
        "logsumexp": round_numbers(log_sum.tolist()),
    }
    return description, ids


def compare_outputs(
    logits: Tensor,
    baseline: Tensor,
    references: Sequence[int],
    is_comparable: Sequence[bool] | None = None,
    top_k: int = TOP_K,
) -> dict[str, Any]:
    """``describe_output`` of the changed logits (R, V), with the KL divergence of the baseline (R, V)
    from them; None if it is infinite.

    ``top.before`` has the probabilities of the first ``SHOWN_TERMS`` listed tokens in the baseline. Rows
    that are not comparable have None in every list and do not count in the mean.
    """
    rows = (
        list(range(len(logits))) if is_comparable is None else [i for i, x in enumerate(is_comparable) if x]
    )
    kept_logits, kept_baseline = logits[rows], baseline[rows]
    log_q, log_p = (x.double().log_softmax(-1) for x in (kept_logits, kept_baseline))
    result, ids = _describe_log_probs(kept_logits, log_q, [references[i] for i in rows], top_k)
    before = log_p.gather(-1, ids[:, :SHOWN_TERMS]).exp()
    result["top"]["before"] = [round_numbers(row) for row in before.tolist()]
    kl = _sum_kl(log_p, log_q)
    is_changed = (kept_logits.argmax(-1) != kept_baseline.argmax(-1)).tolist()
    result |= {
        "kl": [round_number(value) if isfinite(value) else None for value in kl.tolist()],
        "mean_kl": round_number(float(kl.mean())) if rows and kl.isfinite().all() else None,
        "changed": [row for row, changes in zip(rows, is_changed, strict=True) if changes],
    }
    if len(rows) < len(logits):
        for part, names in (
            (result, ("rank", "p", "kl", "logsumexp")),
            (result["top"], ("ids", "p", "before")),
        ):
            for name in names:  # None in the other rows
                of_row = dict(zip(rows, part[name], strict=True))
                part[name] = [of_row.get(row) for row in range(len(logits))]
    return result


def round_number(x: float) -> float:
    """Six significant digits."""
    return float(f"{x:.6g}")


def round_numbers(numbers: Sequence[float]) -> list[float]:
    """Six significant digits of each number."""
    return [round_number(x) for x in numbers]


Setting = dict[str, Any]
"""The values of a lever's fields; a field that is missing has its default."""

_FILE_OPTIONS = ("projection",)

FieldKind = Literal["number", "integer", "choice", "part"]


class Field(NamedTuple):
    """A value that a lever can be set to. A "part" is a part of the registry with options, as in a recipe."""

    name: str
    kind: FieldKind
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    values: Sequence[str] = ()

    def check(self, lever: str, value: Any) -> Any:
        """The value; a UserError if it is of another type, outside of the range, or unknown."""
        name = f"{self.name} of lever {lever!r}"
        if self.kind == "choice" and value not in self.values:
            raise unknown_name_error(name, str(value), self.values)
        if self.kind in ("number", "integer"):
            kinds = (int,) if self.kind == "integer" else (int, float)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            lowest, highest = self.minimum, self.maximum
            if (
                not is_number
                or not (lowest is None or value >= lowest)
                or not (highest is None or value <= highest)
            ):
                article = "an integer" if self.kind == "integer" else "a number"
                raise UserError(
                    f"{name} must be {article} from {lowest:g} to {highest:g}, got {format_value(value)}"
                )
        return self._check_part(name, value) if self.kind == "part" else value

    def _check_part(self, name: str, value: Any) -> Any:
        """A part by the names of ``values`` alone, without files and with numbers up to the maximum.

        A request must not load a plug-in, open a file, or allocate much memory.
        """
        choice = Choice.from_config(value)
        if choice.name not in self.values:
            raise unknown_name_error(name, choice.name, self.values)
        for option, number in choice.options.items():
            if option in _FILE_OPTIONS and number is not None:
                raise UserError(f"{name}: option {option!r} names a file, which a lever does not open")
            if isinstance(number, int | float) and self.maximum is not None and abs(number) > self.maximum:
                raise UserError(f"{name}: option {option!r} must be at most {self.maximum:g}, got {number}")
        return value


class LeverOutput(NamedTuple):
    """The logits of the changed model (R, V), and what they are compared with."""

    logits: Tensor
    baseline: Tensor | None = None  # (R, V); None: the logits of the plain model
    baseline_setting: Setting | None = None
    is_comparable: Sequence[bool] | None = None  # (R,); None: all rows
    detail: dict[str, Any] | None = None
    # positions of the slots that each layer of a cache had at each step, (K, S), by the number of the layer
    slots: Mapping[int, Sequence[Tensor]] | None = None


class Lever(NamedTuple):
    """One way to run a model differently."""

    name: str
    find_obstacle: Callable[[LeverInput], str]  # why it does not apply to this model or text; "" if it does
    list_fields: Callable[[LeverInput], list[Field]]
    list_cases: Callable[[LeverInput], list[Setting]]  # the settings that a file has
    compute: Callable[[LeverInput, Setting], LeverOutput]
    top_k: int = TOP_K  # tokens listed of each row

    def check_setting(self, lever_input: LeverInput, setting: Mapping[str, Any]) -> Setting:
        """The setting with the defaults of missing fields; a UserError for an unknown field or value."""
        fields = {field.name: field for field in self.list_fields(lever_input)}
        for name in setting:
            if name not in fields:
                raise unknown_name_error(f"field of lever {self.name!r}", name, fields)
        checked = {name: setting.get(name, field.default) for name, field in fields.items()}
        return {name: fields[name].check(self.name, value) for name, value in checked.items()}


def run_changed(
    change: Callable[[Model, LeverInput, Setting], None],
) -> Callable[[LeverInput, Setting], LeverOutput]:
    """The ``compute`` of a lever that changes a copy of the model, which shares the weights."""

    @wraps(change)
    def compute(lever_input: LeverInput, setting: Setting) -> LeverOutput:
        model = copy_modules(lever_input.model)
        change(model, lever_input, setting)
        return LeverOutput(lever_input.compute_logits(model))

    return compute
