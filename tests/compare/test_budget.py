import pytest

from polyhead.compare.budget import Budget, read_budget
from polyhead.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "kind", "amount", "description"),
    [
        ("10m", "time", 600, "10 min of training"),
        ("90s", "time", 90, "1.5 min of training"),
        ("1h", "time", 3600, "1 h of training"),
        ("1 H 30 min", "time", 5400, "1 h 30 min of training"),
        ("2.5 minutes", "time", 150, "2.5 min of training"),
        ("7199s", "time", 7199, "2 h of training"),
        ("61s", "time", 61, "1.02 min of training"),
        ("2,000 Steps", "steps", 2000, "2,000 steps"),
        ("1 step", "steps", 1, "1 steps"),
        ("2ksteps", "steps", 2000, "2,000 steps"),
        ("1.5 M tokens", "tokens", 1.5e6, "1,500,000 target tokens"),
        ("1e14flops", "flops", 1e14, "1e+14 FLOPs of training"),
    ],
)
def test_read_budget(text, kind, amount, description):
    budget = read_budget(text)
    assert (budget.kind, budget.amount) == (kind, amount)
    assert str(budget) == description
    assert read_budget(None) == Budget("recipe")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "10", "ten minutes", "m", "10mm", "5 apples"], r"expected a time \(90s, 10m, 1h30m\), steps"),
        (["10m 20steps", "-5m", "1e14"], r"expected a time \(90s, 10m, 1h30m\), steps \(2000steps\)"),
        (["3tokns"], "did you mean 'tokens'"),
        (["0m", "0steps", "0.4tokens"], "expected more than 0"),
        (["3Gsteps", "1e400flops", "9e40tokens"], "too large"),
    ],
)
def test_invalid_budget_is_an_error(texts, message):
    for text in texts:
        with pytest.raises(UserError, match=message):
            read_budget(text)
