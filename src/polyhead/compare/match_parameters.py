"""Match parameter counts: rescale d_ff until each design has as many as the base. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyhead.compare.plan import ComparisonPlan, Design
from polyhead.config.recipe import Recipe

# minimum d_ff relative to the base's; a narrower feed-forward layer would make the comparison unfair
MIN_D_FF_RATIO = 0.25


def match_parameters(plan: ComparisonPlan, count_parameters: Callable[[Recipe], int]) -> ComparisonPlan:
    """Rescale d_ff until each design's parameters are within 1 % of the base's, or note why they cannot."""
    return plan.with_designs(
        row
        if row.recipe is None or row.is_base
        else _match_design(row, row.recipe, plan.base, count_parameters)
        for row in plan.designs
    )


def _match_design(
    design: Design, recipe: Recipe, base: Recipe, count_parameters: Callable[[Recipe], int]
) -> Design:
    def with_d_ff(d_ff: int) -> Recipe:
        return recipe.model_copy(update={"model": recipe.model.model_copy(update={"d_ff": d_ff})})

    d_ff_before, base_d_ff = recipe.model.d_ff, base.model.d_ff
    assert d_ff_before is not None and base_d_ff is not None, "a resolved model has all its sizes"
    count, target_count = count_parameters(recipe), count_parameters(base)
    difference = f"{count:,} parameters against the base's {target_count:,} ({count / target_count - 1:+.1%})"
    slope = count_parameters(with_d_ff(d_ff_before + 1)) - count  # parameters are linear in d_ff
    if slope <= 0:
        outcome = "nothing was matched" if counts_match(count, target_count) else "not matched"
        return _add_note(design, f"{outcome}, since no block of it has a d_ff: {difference}")
    if counts_match(count, target_count):
        return design
    exact_d_ff = d_ff_before + (target_count - count) / slope
    if exact_d_ff < MIN_D_FF_RATIO * base_d_ff:
        requirement = f"a d_ff of {round(exact_d_ff)}" if exact_d_ff >= 0.5 else "a d_ff below 1"
        return _add_note(
            design, f"not matched, since that requires {requirement} (the base has {base_d_ff}): {difference}"
        )
    for d_ff in (8 * round(exact_d_ff / 8), round(exact_d_ff)):  # multiples of 8 suit the kernels
        if d_ff >= 1 and counts_match(count_parameters(with_d_ff(d_ff)), target_count):
            warning = f", less than half of the base's {base_d_ff}" if d_ff < base_d_ff / 2 else ""
            return _add_note(
                replace(design, recipe=with_d_ff(d_ff)), f"d_ff {d_ff} for equal parameters{warning}"
            )
    return _add_note(design, f"not matched, since no d_ff makes them equal: {difference}")


def _add_note(design: Design, note: str) -> Design:
    return replace(design, note="; ".join(filter(None, (design.note, note))))


def counts_match(a: int, b: int) -> bool:
    """Whether two counts agree within 1 % of the second."""
    return abs(a - b) <= 0.01 * b
