"""Designs made equal in size: d_ff is rescaled until each has as many parameters as the base. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyhead.compare.plan import Plan, Row
from polyhead.recipe import Recipe

# of the base's d_ff: a narrower feed-forward layer would be another design, not a fair one
LEAST_WIDTH = 0.25


def match_parameters(plan: Plan, count: Callable[[Recipe], int]) -> Plan:
    """Rescale d_ff of every design until its parameters agree with the base's within 1 %, or say why they cannot."""
    return plan.with_rows(
        row if row.recipe is None or row.is_base else _matched(row, row.recipe, plan.base, count)
        for row in plan.rows
    )


def _matched(row: Row, recipe: Recipe, base: Recipe, count: Callable[[Recipe], int]) -> Row:
    def with_d_ff(d_ff: int) -> Recipe:
        return recipe.model_copy(update={"model": recipe.model.model_copy(update={"d_ff": d_ff})})

    now, usual = recipe.model.d_ff, base.model.d_ff
    assert now is not None and usual is not None, "a resolved model has all its sizes"
    has, wanted = count(recipe), count(base)
    differ = f"{has:,} parameters against the base's {wanted:,} ({has / wanted - 1:+.1%})"
    slope = count(with_d_ff(now + 1)) - has  # parameters are linear in d_ff
    if slope <= 0:
        what = "nothing was matched" if close(has, wanted) else "not matched"
        return _noted(row, f"{what}, since no block of it has a d_ff: {differ}")
    if close(has, wanted):
        return row
    exact = now + (wanted - has) / slope
    if exact < LEAST_WIDTH * usual:
        needs = f"a d_ff of {round(exact)}" if exact >= 0.5 else "a d_ff below 1"
        return _noted(row, f"not matched, since that takes {needs} (the base has {usual}): {differ}")
    for d_ff in (8 * round(exact / 8), round(exact)):  # multiples of 8 suit the kernels
        if d_ff >= 1 and close(count(with_d_ff(d_ff)), wanted):
            narrow = f", less than half of the base's {usual}" if d_ff < usual / 2 else ""
            return _noted(replace(row, recipe=with_d_ff(d_ff)), f"d_ff {d_ff} for equal parameters{narrow}")
    return _noted(row, f"not matched, since no d_ff makes them equal: {differ}")


def _noted(row: Row, note: str) -> Row:
    return replace(row, note="; ".join(filter(None, (row.note, note))))


def close(a: int, b: int) -> bool:
    """Whether two counts agree within 1 % of the second."""
    return abs(a - b) <= 0.01 * b
