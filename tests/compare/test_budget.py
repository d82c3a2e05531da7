from __future__ import annotations

import pytest

from polyhead.compare.budget import Budget, read_budget
from polyhead.core.errors import UserError


@pytest.mark.parametrize(
    ("typed", "kind", "amount", "said"),
    [
        ("10m", "time", 600, "10 min of training"),
        ("90s", "time", 90, "1.5 min of training"),
        ("1h", "time", 3600, "1 h of training"),
        ("1 H 30 min", "time", 5400, "1 h 30 min of training"),
        ("2.5 minutes", "time", 150, "2.5 min of training"),
        ("7199s", "time", 7199, "2 h of training"),
        ("61s", "time", 61, "1.02 min of training"),
        ("2000steps", "steps", 2000, "2,000 steps"),
        ("2,000 Steps", "steps", 2000, "2,000 steps"),
        ("1 step", "steps", 1, "1 steps"),
        ("2ksteps", "steps", 2000, "2,000 steps"),
        ("3Mtokens", "tokens", 3e6, "3,000,000 target tokens"),
        ("1.5 M tokens", "tokens", 1.5e6, "1,500,000 target tokens"),
        ("1e14flops", "flops", 1e14, "1e+14 FLOPs of training"),
        ("20 TFLOPs", "flops", 2e13, "2e+13 FLOPs of training"),
    ],
)
def test_a_budget_is_read_as_people_write_it(typed: str, kind: str, amount: float, said: str) -> None:
    budget = read_budget(typed)
    assert (budget.kind, budget.amount) == (kind, amount)
    assert str(budget) == said


def test_without_a_budget_the_recipe_says_how_long() -> None:
    assert read_budget(None) == Budget("recipe")


@pytest.mark.parametrize(
    "typed", ["", "10", "ten minutes", "m", "10mm", "5 apples", "10m 20steps", "-5m", "1e14"]
)
def test_what_is_no_budget_is_told_with_examples(typed: str) -> None:
    with pytest.raises(UserError, match=r"expected a time \(90s, 10m, 1h30m\), steps \(2000steps\)"):
        read_budget(typed)


def test_the_nearest_unit_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'tokens'"):
        read_budget("3tokns")


@pytest.mark.parametrize("typed", ["0m", "0steps", "0.4tokens"])
def test_a_budget_of_nothing_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="expected more than 0"):
        read_budget(typed)


@pytest.mark.parametrize("typed", ["3Gsteps", "1e400flops", "9e40tokens"])
def test_a_budget_beyond_all_machines_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="too large"):
        read_budget(typed)
