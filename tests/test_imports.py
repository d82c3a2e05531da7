"""Imports go downwards, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import polyhead

ROOT = Path(polyhead.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# from low to high; a module may import from its own layer and those below
LAYERS = [
    {
        "core",
        "errors",
        "elsewhere",
        "alive",
        "files",
        "presets",
        "foreign",
        "ranges",
        "registry",
        "config",
        "clashes",
        "trial",
        "document",
        "recipe",
        "sections",
        "data_sections",
        "generation_section",
        "places",
        "checked",
        "calls",
        "dense",
        "hub",
        "undrawn",
    },
    {"nn", "cache", "text"},
    {"data", "models"},
    {"hf", "generate", "analysis", "fast", "evaluate"},
    {"train", "serve", "run", "run_files", "loading", "together", "speculate", "export"},
    {"compare", "lab", "planning", "starter"},
    {"cli", "demo", "verbs"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
TOP = {"__init__", "__main__"}


def dotted(path: Path) -> str:
    parts = ["polyhead", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


def imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """The modules of polyhead that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "polyhead")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if (node.module or "").split(".")[0] == "polyhead":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in NAMES else str(node.module)


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_go_downwards(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own in TOP:
        return
    for name in imports(ast.walk(ast.parse(path.read_text()))):
        other = name.split(".")[1] if "." in name else None
        if other is None:  # the package itself holds only the version and lazy names
            assert own in LAYERS[-1] or own in {"run", "train"}, f"{dotted(path)} imports polyhead itself"
            continue
        assert HEIGHT[other] <= HEIGHT[own], f"{dotted(path)} imports {name}, which is of a higher layer"
        assert {own, other} != {"train", "serve"}, (
            f"{dotted(path)} imports {name}: train and serve stay apart"
        )


def test_every_module_has_a_layer() -> None:
    found = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in MODULES}
    assert found - TOP <= set(HEIGHT)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        dotted(path): {
            name for name in imports(iter(ast.parse(path.read_text()).body)) if name != dotted(path)
        }
        for path in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import polyhead", {"torch", "pydantic", "typer"}),
        ("from polyhead.cli import main; main(['--help'])", {"torch", "pydantic", "typer", "rich"}),
        ("from polyhead.cli import main; main(['train', '--help'])", {"torch"}),
        ("from polyhead.cli import main; main(['translate', '--help'])", {"torch"}),
        (
            "from polyhead.cli import main; main(['serve', '--help'])",
            {"torch", "uvicorn", "prometheus_client"},
        ),
        (
            "from polyhead.cli import main; main(['export', '--help'])",
            {"torch", "onnxruntime", "onnxscript", "ctranslate2"},
        ),
        ("import polyhead.recipe", {"torch"}),
    ],
)
def test_nothing_heavy_is_imported_early(code: str, absent: set[str]) -> None:
    script = f"import sys; {code}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stderr.split())
