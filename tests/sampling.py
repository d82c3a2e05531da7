"""Which cases run: all of a small test, a fixed sample of a large grid, everything with ``--all``."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

import pytest

LARGEST_WHOLE_GRID = 12
CASE_PARTS: pytest.StashKey[frozenset[str]] = pytest.StashKey()
"""The registered parts that a case meets: a sample has each part of its grid at least once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cases")
    group.addoption("--all", action="store_true", help="run every case of every test, also the slow ones")
    group.addoption("--shard", type=parse_shard, metavar="i/n", help="run the i-th of n slices of the tests")


def parse_shard(text: str) -> tuple[int, int]:
    """'2/4' as (2, 4)."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise pytest.UsageError(f"--shard is {text!r}; it must be i/n with 1 <= i <= n, such as 2/4")
    return int(index), int(count)


def checksum(name: str) -> int:
    return zlib.crc32(name.encode())


def sample_cases(cases: Mapping[str, Set[str]]) -> set[str]:
    """The node ids that stand for a grid of more than 12 cases, from the parts that each of them meets.

    They are the ceil(sqrt(n)) ids of the smallest checksums, so that everybody runs the same ones, and as
    many further ids as it takes to meet each part once.
    """
    if len(cases) <= LARGEST_WHOLE_GRID:
        return set(cases)
    order = sorted(cases, key=checksum)
    size = math.ceil(math.sqrt(len(order)))
    sample = order[:size]
    missing = set().union(*cases.values()).difference(*(cases[id] for id in sample))
    for id in order[size:]:
        if missing & cases[id]:
            sample.append(id)
            missing -= cases[id]
    return set(sample)


def function_of(item: pytest.Item) -> str:
    """The node id of the test function, without the parameters of the case."""
    return item.nodeid.partition("[")[0]


def sample_items(items: Iterable[pytest.Item]) -> set[str]:
    """The node ids of the cases that run by default."""
    grids: dict[str, dict[str, Set[str]]] = defaultdict(dict)
    sample = set()
    for item in items:
        if item.get_closest_marker("whole"):
            sample.add(item.nodeid)
        else:
            grids[function_of(item)][item.nodeid] = item.stash.get(CASE_PARTS, frozenset())
    return sample.union(*map(sample_cases, grids.values()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selected = list(items)
    if not config.getoption("--all"):
        if not config.getoption("markexpr"):
            selected = [item for item in selected if not item.get_closest_marker("slow")]
        sample = sample_items(selected)
        selected = [item for item in selected if item.nodeid in sample]
    if shard := config.getoption("--shard"):
        index, count = shard
        selected = [item for item in selected if checksum(function_of(item)) % count == index - 1]
    if len(selected) < len(items):
        ids = {item.nodeid for item in selected}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in ids])
        items[:] = selected
