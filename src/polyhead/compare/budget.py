"""Training budget of each design: time, steps, target tokens or floating-point operations."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from polyhead.core.errors import MAX_INT, UserError, did_you_mean
from polyhead.core.i18n import tr

BudgetKind = Literal["recipe", "time", "steps", "tokens", "flops"]

_TIME_UNITS = {
    1: ("s", "sec", "secs", "second", "seconds"),
    60: ("m", "min", "mins", "minute", "minutes"),
    3600: ("h", "hour", "hours"),
}
_SECONDS_PER_UNIT = {name: factor for factor, names in _TIME_UNITS.items() for name in names}
_COUNT_UNITS: dict[str, BudgetKind] = {
    "step": "steps", "steps": "steps", "token": "tokens", "tokens": "tokens", "flop": "flops",
    "flops": "flops",
}  # fmt: skip
_SI_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
_AMOUNT_PATTERN = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)([a-z]+)")


class Budget(NamedTuple):
    """Training budget of every design.

    ``amount`` is seconds of training, steps, target tokens or training FLOPs, depending on ``kind``; the kind
    "recipe" takes the steps of the recipe and has no amount.
    """

    kind: BudgetKind
    amount: float = 0.0

    def __str__(self) -> str:
        text, amount = self._message_parts()
        return text.format(amount=amount)

    def localize(self) -> str:
        """The budget as text in the language of the pages."""
        text, amount = self._message_parts()
        return tr(text, amount=amount)

    def _message_parts(self) -> tuple[str, str]:
        if self.kind == "recipe":
            return "the steps of the recipe", ""
        if self.kind == "time":
            return "{amount} of training", _format_duration(self.amount)
        if self.kind == "flops":
            return "{amount} FLOPs of training", f"{self.amount:.3g}"
        unit = "target tokens" if self.kind == "tokens" else "steps"
        return f"{{amount}} {unit}", f"{self.amount:,.0f}"


def read_budget(text: str | None) -> Budget:
    """Parse ``10m``, ``1h30m``, ``2000 steps``, ``3M tokens``, ``1e14 FLOPs``; None: the recipe's length."""
    if text is None:
        return Budget("recipe")
    compact = "".join(text.lower().split())
    pieces: list[re.Match[str]] = []
    end = 0
    while piece := _AMOUNT_PATTERN.match(compact, end):
        pieces.append(piece)
        end = piece.end()
    if not pieces or end < len(compact):
        raise _budget_error(text)
    values = [float(re.sub("[_,]", "", piece[1])) for piece in pieces]
    units = [piece[2] for piece in pieces]
    if all(unit in _SECONDS_PER_UNIT for unit in units):
        seconds = sum(value * _SECONDS_PER_UNIT[unit] for value, unit in zip(values, units, strict=True))
        return _validate_budget(Budget("time", seconds), text)
    for name, kind in _COUNT_UNITS.items():
        prefix = units[0].removesuffix(name)
        if len(pieces) == 1 and units[0].endswith(name) and prefix in _SI_PREFIXES:
            return _validate_budget(Budget(kind, values[0] * _SI_PREFIXES[prefix]), text)
    raise _budget_error(text, units[-1])


def _validate_budget(budget: Budget, text: str) -> Budget:
    if budget.amount <= 0 or (budget.kind in ("steps", "tokens") and budget.amount < 1):
        raise UserError(f"--budget {text!r}: expected more than 0")
    if budget.amount > (MAX_INT if budget.kind == "steps" else 1e30):
        raise UserError(f"--budget {text!r}: too large")
    return Budget(budget.kind, float(round(budget.amount))) if budget.kind == "steps" else budget


def _budget_error(text: str, unit: str = "") -> UserError:
    hint = did_you_mean(unit, [*_SECONDS_PER_UNIT, *_COUNT_UNITS]) if len(unit) > 2 else ""
    return UserError(
        f"--budget {text!r}: expected a time (90s, 10m, 1h30m), steps (2000steps), target tokens (3Mtokens) "
        f"or training FLOPs (1e14flops){hint}"
    )


def _format_duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02} min" if minutes else f"{hours} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:g} s"
