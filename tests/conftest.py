"""One thread a test, so that numbers repeat, and the table of acceptance ids for `./dev acceptance`."""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["POLYHEAD_LANG"] = "en"  # whatever the language of the machine
# CTranslate2's own sums of int8 overflow on processors of AMD without VNNI; it reads this once, on import
os.environ.setdefault("CT2_USE_MKL", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="end with a table of acceptance ids")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the ids on each test, where they travel with its report (also between xdist's processes)."""
    for item in items:
        for mark in item.iter_markers("acceptance"):
            item.user_properties += [("acceptance", id) for id in mark.args]


def seed(name: str) -> None:
    """What a test or a fixture draws depends on its name alone, not on what ran before it or beside it."""
    number = zlib.crc32(name.encode())
    torch.manual_seed(number)
    random.seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    seed(f"{fixturedef.argname}[{request.param_index}]")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    seed(item.nodeid)


@pytest.fixture
def unsearched() -> Iterator[None]:
    """Python does not search for what only knows itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Table:
    """What became of the tests of each acceptance id."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for name, id in report.user_properties:
                if name == "acceptance":
                    self.outcomes[str(id)][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("acceptance")
        for id, seen in sorted(self.outcomes.items(), key=lambda item: (item[0][0], int(item[0][1:]))):
            verdict = "FAIL" if seen["failed"] else "pass" if seen["passed"] else "skipped"
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(seen.items()))
            terminalreporter.write_line(f"{id:<4} {verdict:<8} {counts}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--table"):
        config.pluginmanager.register(Table(), "acceptance-table")
