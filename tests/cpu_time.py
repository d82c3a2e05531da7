"""The processor time of a run: its total, that of each directory and of the dearest tests, and a limit.

The same tests take three times as long on an older or busier machine. So a fixed work is timed now and
then, and the limit is judged only where it takes about as long as where the limit was set.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path, PurePosixPath
from statistics import median

import pytest

PROPERTY = "cpu_time"
DEAREST = 40
SOURCE = Path(__file__).read_text(encoding="utf-8")
USUAL_SECONDS = 0.04  # what time_fixed_work returned where the limit was set
MAX_SLOWNESS = 1.25  # beyond it the limit is not judged
WORK_EVERY = 1000  # reports


def time_fixed_work() -> float:
    """Processor seconds that compiling this file a hundred times takes."""
    start = time.process_time()
    for _ in range(100):
        compile(SOURCE, __file__, "exec")
    return time.process_time() - start


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("processor time")
    group.addoption(
        "--cpu-table", action="store_true", help="end with the processor time of directories and tests"
    )
    group.addoption(
        "--cpu-limit", type=float, metavar="SECONDS", help="fail if the run takes more processor time"
    )


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTimes:
    """What each test costs, measured where it runs and collected where the reports arrive."""

    def __init__(self) -> None:
        self.mark = cpu_seconds()
        self.seconds: Counter[str] = Counter()
        self.work_seconds = [time_fixed_work()]
        self.n_reports = 0

    @property
    def slowness(self) -> float:
        """How many times as long as usual the fixed work takes here."""
        return median(self.work_seconds) / USUAL_SECONDS

    def exceeds(self, limit: float | None) -> bool:
        return limit is not None and cpu_seconds() > limit and self.slowness <= MAX_SLOWNESS

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        now = cpu_seconds()
        report.user_properties.append((PROPERTY, now - self.mark))
        self.mark = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # a report has the properties of its item too, which an earlier phase may have written
        seconds = [value for name, value in report.user_properties if name == PROPERTY]
        self.seconds[report.nodeid] += float(seconds[-1])
        self.n_reports += 1
        if self.n_reports % WORK_EVERY == 0:
            self.work_seconds.append(time_fixed_work())

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        limit = config.getoption("--cpu-limit")
        if config.getoption("--cpu-table"):
            self.write_tables(terminalreporter)
        terminalreporter.write_line(
            f"processor time: {cpu_seconds():.0f} s, {sum(self.seconds.values()):.0f} s of it in tests, "
            f"on a machine that takes {self.slowness:.2f} times as long as usual"
        )
        if self.exceeds(limit):
            terminalreporter.write_line(f"FAILED: the limit of processor time is {limit:.0f} s", red=True)

    def write_tables(self, terminalreporter: pytest.TerminalReporter) -> None:
        directories, functions = Counter[str](), Counter[str]()
        for nodeid, seconds in self.seconds.items():
            directories[str(PurePosixPath(nodeid.partition("::")[0]).parent)] += seconds
            functions[nodeid.partition("[")[0]] += seconds
        for title, table in (
            ("processor time by directory", directories.most_common()),
            (f"{DEAREST} dearest tests by processor time", functions.most_common(DEAREST)),
        ):
            terminalreporter.section(title)
            for name, seconds in table:
                terminalreporter.write_line(f"{seconds:8.1f} s  {name}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.exceeds(session.config.getoption("--cpu-limit")) and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes(), "cpu-times")
