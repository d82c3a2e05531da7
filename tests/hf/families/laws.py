"""Laws that hold for each model family, over the rows of a table of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

Rows = Callable[[Iterable[str]], list[Any]]


def over(rows: Rows) -> Callable[[Any], Any]:
    """Run a test for each row of the families that its class names."""

    def mark(test: Any) -> Any:
        test.rows = rows
        return test

    return mark


class FamilyLaws:
    """A subclass names its families; a law without a row for them is no test of it."""

    names: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            rows = getattr(getattr(cls, name), "rows", None)
            if rows and cls.names and not rows(cls.names):
                setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        rows = getattr(metafunc.function, "rows", None)
        if rows:
            metafunc.parametrize("case", rows(self.names))
