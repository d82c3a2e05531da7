"""Small wrong changes of the package, and whether tests notice them: ``./dev mutants``.

A mutant changes an expression of a function, or a line of the kernels. The tests are collected once. Each
mutant runs in a fork of that process, with the code of the function replaced, on the tests that call it,
cheapest first, until one fails. Processes that a test starts import a copy of the package.

    ./dev mutants --mutants 300                              draw 300 and run the default tests on them
    ./dev mutants --mutants-from build/mutants.json --all    those that survived, on every case
"""

from __future__ import annotations

import ast
import copy
import functools
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from tests.source_files import MODULES, ROOT

PACKAGES = "nn cache generation data train tokenizers evaluate config checkpoint serve cost kernels".split()  # noqa: SIM905
KERNEL_SHARE = 20  # one mutant in 20 is one of the C++ kernels
PAIRS = "Add Sub, Mult Div, Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or"
SWAPS = {getattr(ast, a): getattr(ast, b) for a, b in map(str.split, PAIRS.split(","))}
SWAPS |= {new: old for old, new in SWAPS.items()} | {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
KERNEL_SWAPS = [(" < ", " <= "), (" + ", " - "), (" * ", " + "), (" - ", " + ")]
KERNEL_SWAPS += [("max(", "min("), (" += ", " = ")]
HANG = 10.0  # processor seconds that a test may take beyond ten times its usual ones
Outcome = tuple[str, str]  # killed, survived or undecided, and by what


class NotImportedError(Exception):
    """No test imports the module of a mutant, or the function is not kept under its name."""


class Mutant(NamedTuple):
    """A change: the file, the first line and name of the outermost function, the site, and what it does."""

    path: str
    line: int
    function: str
    site: int
    kind: str
    text: str


def outermost_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and methods of its classes, with their qualified names."""

    def walk(nodes: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Any]]:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(tree.body, "")


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line that a code object has: that of the first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Wrong versions of a node, each with the kind of the change."""
    replacement: Any = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        replacement.ops = [SWAPS[type(node.ops[0])]()]
        yield "comparison", replacement
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        replacement.op = SWAPS[type(node.op)]()
        yield "operator", replacement
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "dropped not", replacement.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        replacement.value += 1
        yield "off by one", replacement
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        replacement.value = not node.value
        yield "other boolean", replacement
    elif isinstance(node, ast.If):
        replacement.test = ast.Constant(False)
        yield "removed branch", replacement
    elif isinstance(node, ast.Name) and node.id in NAMES:
        replacement.id = NAMES[node.id]
        yield "other extreme", replacement
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("masked_fill", "clamp", "clamp_min"):
            yield "dropped mask", replacement.func.value
        is_symmetric = isinstance(node.func, ast.Name) and node.func.id in NAMES
        if (
            len(node.args) > 1
            and not is_symmetric
            and not any(isinstance(a, ast.Starred) for a in node.args[:2])
        ):
            replacement.args[:2] = reversed(replacement.args[:2])
            yield "swapped arguments", replacement


def is_text(node: ast.AST) -> bool:
    """Whether a node only words a message: raised errors, asserts, formatted texts and calls of ``tr``."""
    is_translation = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tr"
    return is_translation or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)


def list_sites(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> list[tuple[str, ast.AST, Callable[[], None]]]:
    """Changes of a function outside of its messages: the kind, the new node, and what puts it in place."""
    texts = {id(part) for node in ast.walk(function) if is_text(node) for part in ast.walk(node)}
    sites = []
    for parent in ast.walk(function):
        # defaults are no part of the code that is replaced, and zip(strict=True) only guards against bugs
        if parent is function.args or (isinstance(parent, ast.keyword) and parent.arg == "strict"):
            continue
        for field, value in ast.iter_fields(parent):
            is_signature = field in ("annotation", "returns", "decorator_list", "args")
            if is_signature and not isinstance(parent, ast.Call):
                continue
            for i, child in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(child, ast.AST) or id(child) in texts:
                    continue
                for kind, replacement in changes_of(child):
                    ast.copy_location(replacement, child)
                    change = (
                        functools.partial(value.__setitem__, i, replacement)
                        if isinstance(value, list)
                        else functools.partial(setattr, parent, field, replacement)
                    )
                    sites.append((kind, replacement, change))
    return sites


def find_function(
    path: Path, name: str, line: int
) -> tuple[ast.Module, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (node,) = [node for found, node in outermost_functions(tree) if (found, first_line(node)) == (name, line)]
    return tree, node


def python_mutants(package: str) -> Iterator[Mutant]:
    for path in MODULES:
        if path.relative_to(ROOT).parts[0] != package:
            continue
        for name, function in outermost_functions(ast.parse(path.read_text(encoding="utf-8"))):
            for i, (kind, new, _) in enumerate(list_sites(function)):
                text = ast.unparse(new).splitlines()[0]
                file = str(path.relative_to(ROOT))
                yield Mutant(file, first_line(function), name, i, kind, f"line {new.lineno}: {text}")  # type: ignore[attr-defined]


def kernel_mutants() -> Iterator[Mutant]:
    for path in sorted((ROOT / "kernels/cpp").glob("*.[ch]pp")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            code = line.partition("//")[0]
            if code.lstrip().startswith(("#", "*", "/*", "template", "static_assert")):
                continue
            for i, (old, new) in enumerate(KERNEL_SWAPS):
                if old in code:
                    text = code.replace(old, new, 1).strip()
                    yield Mutant(str(path.relative_to(ROOT)), number + 1, "", i, "kernel", text)


def draw_mutants(count: int, seed: int, packages: list[str]) -> list[Mutant]:
    """As many of each package, and within one as many of each kind of change."""
    rng, drawn = random.Random(seed), []
    kernels = count // KERNEL_SHARE if "kernels" in packages else 0
    for i, package in enumerate(packages):
        kinds: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in python_mutants(package):
            kinds[mutant.kind].append(mutant)
        for _ in range((count - kernels + i) // len(packages)):
            kind = rng.choice(sorted(kind for kind in kinds if kinds[kind]))
            drawn.append(kinds[kind].pop(rng.randrange(len(kinds[kind]))))
    return drawn + rng.sample(list(kernel_mutants()), kernels)


def mutate_function(mutant: Mutant) -> str:
    """Give the function of this process the wrong code; returns the text of the wrong module."""
    path = ROOT / mutant.path
    tree, node = find_function(path, mutant.function, mutant.line)
    list_sites(node)[mutant.site][2]()
    ast.fix_missing_locations(tree)
    codes: list[CodeType] = [compile(tree, str(path), "exec")]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.line):
            new = code
    gc.unfreeze()  # what was frozen after the collection of tests is not among gc's objects
    n_replaced = 0
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            old = function.__code__
            if (old.co_filename, old.co_qualname, old.co_firstlineno) == (
                str(path),
                mutant.function,
                mutant.line,
            ):
                function.__code__ = new
                n_replaced += 1
    if not n_replaced:
        raise NotImportedError(f"no function {mutant.function} of {mutant.path} was imported")
    return ast.unparse(tree)


def mutate_kernel(mutant: Mutant, directory: Path) -> bool:
    """Build the wrong kernels and use them from now on; False if they do not compile."""
    from tests.kernels.build_extension_helpers import clear_kernels

    from polyhead.kernels import build_extension

    sources = directory / "cpp"
    shutil.copytree(ROOT / "kernels/cpp", sources)
    path = sources / Path(mutant.path).name
    lines = path.read_text(encoding="utf-8").splitlines()
    code, slashes, comment = lines[mutant.line - 1].partition("//")
    lines[mutant.line - 1] = code.replace(*KERNEL_SWAPS[mutant.site], 1) + slashes + comment
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    build_extension.SOURCE_DIR = sources
    os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
    clear_kernels()
    return build_extension.load_kernels() is not None


class Calls:
    """Which functions of the package each test calls, and its processor seconds."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)  # "path:line" -> node ids
        self.seconds: dict[str, float] = {}

    def record(self, items: list[pytest.Item]) -> None:
        codes: set[CodeType] = set()

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        for i, (item, next_item) in enumerate(zip(items, [*items[1:], None], strict=True)):
            codes.clear()
            start = time.process_time()
            threading.setprofile(profile)
            sys.setprofile(profile)
            try:
                has_failed = run_item(item, next_item)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)  # type: ignore[arg-type]
            if has_failed:
                continue
            self.seconds[item.nodeid] = time.process_time() - start
            for code in list(codes):
                if code.co_filename.startswith(str(ROOT)):
                    self.tests[f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno}"].append(
                        item.nodeid
                    )
            if i % 200 == 0:
                print(f"recorded {i} of {len(items)} tests", file=sys.stderr, flush=True)


def run_item(item: pytest.Item, next_item: pytest.Item | None) -> bool:
    """Run a test; whether it failed."""
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=next_item))


def select_items(mutant: Mutant, calls: Calls, items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that can notice a mutant, cheapest first: callers of the function, and those of its file."""
    if not mutant.function:
        near = [
            i for i in items if i.nodeid.startswith(("tests/kernels", "tests/laws/test_training_kernels"))
        ]
    else:
        functions = {id.partition("[")[0] for id in calls.tests.get(f"{mutant.path}:{mutant.line}", ())}
        path = Path(mutant.path)
        mirror = f"tests/{path.parent / f'test_{path.name}'}".replace("__init__", path.parent.name)
        near = [
            i for i in items if i.nodeid.partition("[")[0] in functions or i.nodeid.startswith(f"{mirror}::")
        ]
    usual = [item for item in near if item.nodeid in calls.seconds]
    rest = [
        item for item in near if item.nodeid not in calls.seconds
    ]  # cases that the recorded run did not take
    return sorted(usual, key=lambda item: calls.seconds[item.nodeid]) + rest


def run_mutant(mutant: Mutant, items: list[pytest.Item], calls: Calls, budget: float, pipe: int) -> None:
    """In a fork: write the outcome to the pipe."""

    def write(outcome: str, reason: str) -> None:
        os.write(pipe, f"{outcome}\t{reason}\n".encode())

    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    directory = Path(tempfile.mkdtemp())
    try:
        if mutant.function:
            shutil.copytree(ROOT, directory / "polyhead", ignore=shutil.ignore_patterns("__pycache__"))
            (directory / "polyhead" / mutant.path).write_text(mutate_function(mutant), encoding="utf-8")
            os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
        elif not mutate_kernel(mutant, directory):
            return write("killed", "does not compile")
        start = time.process_time()
        for i, (item, next_item) in enumerate(zip(items, [*items[1:], None], strict=True)):
            limit = HANG + 10 * calls.seconds.get(item.nodeid, 1.0)
            signal.signal(
                signal.SIGPROF, lambda *_, id=item.nodeid: (write("killed", f"hang of {id}"), os._exit(0))
            )
            signal.setitimer(signal.ITIMER_PROF, limit)
            if run_item(item, next_item):
                return write("killed", item.nodeid)
            if time.process_time() - start > budget:
                return write("undecided", f"{i + 1} of {len(items)} tests passed in {budget:.0f} s")
        write("survived", f"{len(items)} tests passed")
    except NotImportedError as error:
        write("undecided", str(error))
    except BaseException as error:
        write("killed", f"{type(error).__name__} outside of a test")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        shutil.rmtree(directory, ignore_errors=True)


def run_forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Run something in a fork; its process id, and the end of the pipe to read from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            work(writing)
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def read_outcome(pid: int, pipe: int) -> Outcome:
    with os.fdopen(pipe, "rb") as file:
        line = file.readline().decode().strip()
    os.waitpid(pid, 0)
    outcome, _, reason = line.partition("\t")
    return (outcome, reason) if outcome else ("killed", "the process died")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mutants")
    group.addoption("--mutants", type=int, default=300, metavar="N", help="how many to draw")
    group.addoption(
        "--mutants-packages", default=",".join(PACKAGES), metavar="NAME,NAME", help="where to draw"
    )
    group.addoption("--mutants-seed", type=int, default=0, metavar="SEED")
    group.addoption(
        "--mutants-budget", type=float, default=120.0, metavar="SECONDS", help="of the processor, a mutant"
    )
    group.addoption(
        "--mutants-from", type=Path, metavar="FILE", help="those of a report that were not killed"
    )
    group.addoption(
        "--mutants-calls", type=Path, metavar="FILE", help="keep which test calls what, and reuse it"
    )
    group.addoption("--mutants-report", type=Path, default=Path("build/mutants.json"), metavar="FILE")


def record_calls(items: list[pytest.Item], file: Path) -> None:
    def work(pipe: int) -> None:
        calls = Calls()
        calls.record(items)
        file.write_text(json.dumps([calls.tests, calls.seconds]))

    pid, pipe = run_forked(work)
    os.waitpid(pid, 0)
    os.close(pipe)


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of the tests: the mutants."""
    option, items = session.config.getoption, session.items
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    report: Path = option("--mutants-report")
    report.parent.mkdir(parents=True, exist_ok=True)
    file = option("--mutants-calls") or report.with_name("mutants-calls.json")
    if option("--mutants-calls") is None or not file.exists():
        record_calls(items, file)
    calls = Calls()
    tests, calls.seconds = json.loads(file.read_text())
    calls.tests.update(tests)
    if option("--mutants-from"):
        rows = json.loads(option("--mutants-from").read_text())
        mutants = [Mutant(*row["mutant"]) for row in rows if row["outcome"] != "killed"]
    else:
        packages = option("--mutants-packages").split(",")
        mutants = draw_mutants(option("--mutants"), option("--mutants-seed"), packages)
    rows, running = [], {}
    for mutant in [*mutants, *[None] * os.cpu_count()]:  # type: ignore[list-item]
        if len(running) >= (os.cpu_count() or 1) or (mutant is None and running):
            pid = next(iter(running))
            ended, pipe = running.pop(pid)
            outcome, reason = read_outcome(pid, pipe)
            rows.append({"mutant": ended, "outcome": outcome, "by": reason})
            where = f"{ended.path} {ended.function}: {ended.kind}, {ended.text}"
            print(f"{len(rows):4d} {outcome:<9} {where} [{reason}]", flush=True)
            report.write_text(json.dumps(rows, indent=1))
        if mutant is not None:
            near = select_items(mutant, calls, items)
            pid, pipe = run_forked(
                lambda pipe, mutant=mutant, near=near: run_mutant(
                    mutant, near, calls, option("--mutants-budget"), pipe
                )
            )
            running[pid] = (mutant, pipe)
    print_table(rows)
    return True


def print_table(rows: list[dict[str, Any]]) -> None:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        path = Path(row["mutant"][0])
        for name in ("C++" if path.suffix != ".py" else path.parts[0], "all"):
            table[name][row["outcome"]] += 1
    print("| package | mutants | killed | survived | undecided |\n| --- | --- | --- | --- | --- |")
    for name in sorted(table, key=lambda name: (name == "all", name)):
        n = table[name]
        print(f"| {name} | {n.total()} | {n['killed']} | {n['survived']} | {n['undecided']} |")
