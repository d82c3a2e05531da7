"""Which lines a share holds out: spread evenly, because files are often sorted."""

from __future__ import annotations

import math

from polyhead.errors import UserError


def held_out(number: int, share: float) -> bool:
    """Whether the line of that number, from 1, is one of the share."""
    return math.floor(number * share) > math.floor((number - 1) * share)


def none_held_out(share: float, number: int, what: str, where: str) -> UserError:
    """The error for a share of so many lines that is none of them."""
    return UserError(
        f"data.valid_share is {share:g}: of the {number:,} {what}{'s' * (number > 1)} in {where} that is none; "
        + (f"{_least(number):g} or more would hold out one, or " if number > 1 else "")
        + "name files in data.valid"
    )


def _least(number: int) -> float:
    """A short number that is one of so many, or a little more: 0.34 of 3."""
    digits = len(str(number)) + 1
    return math.ceil(10**digits / number) / 10**digits
