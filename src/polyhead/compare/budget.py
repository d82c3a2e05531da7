"""How long each design may learn: a time, a number of steps, of target tokens, or of floating-point operations."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from polyhead.core.i18n import tr
from polyhead.errors import MOST, UserError, nearest

Kind = Literal["recipe", "time", "steps", "tokens", "flops"]

SECONDS = {
    1: ("s", "sec", "secs", "second", "seconds"),
    60: ("m", "min", "mins", "minute", "minutes"),
    3600: ("h", "hour", "hours"),
}
TIMES = {name: factor for factor, names in SECONDS.items() for name in names}
COUNTS: dict[str, Kind] = {
    "step": "steps", "steps": "steps", "token": "tokens", "tokens": "tokens", "flop": "flops", "flops": "flops",
}  # fmt: skip
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
PIECE = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)([a-z]+)")


class Budget(NamedTuple):
    """What every design gets: seconds of training, steps, target tokens, or FLOPs of training; or the recipe's steps."""

    kind: Kind
    amount: float = 0.0

    def __str__(self) -> str:
        text, amount = self._text()
        return text.format(amount=amount)

    def translated(self) -> str:
        """The same in the language of the pages."""
        text, amount = self._text()
        return tr(text, amount=amount)

    def _text(self) -> tuple[str, str]:
        if self.kind == "recipe":
            return "the steps of the recipe", ""
        if self.kind == "time":
            return "{amount} of training", _time(self.amount)
        if self.kind == "flops":
            return "{amount} FLOPs of training", f"{self.amount:.3g}"
        unit = "target tokens" if self.kind == "tokens" else "steps"
        return f"{{amount}} {unit}", f"{self.amount:,.0f}"


def read_budget(text: str | None) -> Budget:
    """``10m``, ``1h30m``, ``2000 steps``, ``3M tokens``, ``1e14 FLOPs``; None is the recipe's own length."""
    if text is None:
        return Budget("recipe")
    typed = "".join(text.lower().split())
    pieces: list[re.Match[str]] = []
    end = 0
    while piece := PIECE.match(typed, end):
        pieces.append(piece)
        end = piece.end()
    if not pieces or end < len(typed):
        raise _wrong(text)
    values = [float(re.sub("[_,]", "", piece[1])) for piece in pieces]
    units = [piece[2] for piece in pieces]
    if all(unit in TIMES for unit in units):
        seconds = sum(value * TIMES[unit] for value, unit in zip(values, units, strict=True))
        return _checked(Budget("time", seconds), text)
    for name, kind in COUNTS.items():
        prefix = units[0].removesuffix(name)
        if len(pieces) == 1 and units[0].endswith(name) and prefix in PREFIXES:
            return _checked(Budget(kind, values[0] * PREFIXES[prefix]), text)
    raise _wrong(text, units[-1])


def _checked(budget: Budget, text: str) -> Budget:
    if budget.amount <= 0 or (budget.kind in ("steps", "tokens") and budget.amount < 1):
        raise UserError(f"--budget {text!r}: there is nothing to train with; give more than 0")
    if budget.amount > (MOST if budget.kind == "steps" else 1e30):
        raise UserError(f"--budget {text!r}: more than any machine can do")
    return Budget(budget.kind, float(round(budget.amount))) if budget.kind == "steps" else budget


def _wrong(text: str, unit: str = "") -> UserError:
    hint = nearest(unit, [*TIMES, *COUNTS]) if len(unit) > 2 else ""
    return UserError(
        f"--budget {text!r}: expected a time (90s, 10m, 1h30m), steps (2000steps), target tokens (3Mtokens) "
        f"or training FLOPs (1e14flops){hint}"
    )


def _time(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02} min" if minutes else f"{hours} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:g} s"
