"""What holds for every test: one thread, seeds, kernels compiled beforehand, and no skip where CI is set."""

from __future__ import annotations

import gc
import os
import random
import re
import resource
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import hypothesis
import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["POLYHEAD_LANG"] = "en"  # whatever the language of the machine
# CTranslate2's own sums of int8 overflow on processors of AMD without VNNI; it reads this once, on import
os.environ.setdefault("CT2_USE_MKL", "1")


IN_CI = bool(os.environ.get("CI"))
# cases that mean nothing, and packages that no extra for development installs
EXPECTED_SKIP = re.compile(
    r"not applicable|could not import '(llama_cpp|tensorboard|langchain_openai|litellm|lm_eval|datasets)"
)
pytest_plugins = ["tests.sampling", "tests.cpu_time"]
hypothesis.settings.register_profile("default", max_examples=60, deadline=None, derandomize=True)
hypothesis.settings.register_profile("all", max_examples=1800, deadline=None, derandomize=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="end with a table of acceptance ids")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the ids on each test, where they travel with its report (also between xdist's processes)."""
    for item in items:
        for mark in item.iter_markers("acceptance"):
            item.user_properties += [("acceptance", id) for id in mark.args]


def pytest_collection_finish() -> None:
    """Leave the tests themselves, tens of thousands of objects, out of later garbage collections."""
    gc.collect()
    gc.freeze()


def seed(name: str) -> None:
    """What a test or a fixture draws depends on its name alone, not on what ran before it or beside it."""
    number = zlib.crc32(name.encode())
    # torch.manual_seed takes milliseconds: it also notes the seed for devices that this machine may lack
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    random.seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    seed(f"{fixturedef.argname}[{request.param_index}]")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    seed(item.nodeid)


@pytest.fixture
def gc_disabled() -> Iterator[None]:
    """Garbage collection is off: only reference counts free objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def file_limit() -> Callable[[int], AbstractContextManager[None]]:
    """A context in which no file can grow beyond some bytes, as on a full disk."""

    @contextmanager
    def limit_size(size: int) -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limit_size


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
        for id, counts in sorted(self.outcomes.items(), key=lambda item: (item[0][0], int(item[0][1:]))):
            verdict = "FAIL" if counts["failed"] else "pass" if counts["passed"] else "skipped"
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
            terminalreporter.write_line(f"{id:<4} {verdict:<8} {counts}")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job of a script's background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.load_profile("all" if config.getoption("--all") else "default")
    if config.getoption("--table"):
        config.pluginmanager.register(Table(), "acceptance-table")
    if not hasattr(config, "workerinput") and not config.getoption("collectonly"):
        compile_kernels()


def compile_kernels() -> None:
    """Compile the kernels before any worker starts: each of them would compile its own otherwise."""
    from polyhead.kernels.build_extension import load_kernels

    if load_kernels() is None and IN_CI:
        pytest.exit("the kernels could not be compiled", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Where CI is set, a test that lacks what it needs fails; one that does not apply says so."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not EXPECTED_SKIP.match(reason.removeprefix("Skipped: ")):
            report.outcome, report.longrepr = "failed", f"skipped where CI is set: {reason}"
    return report
