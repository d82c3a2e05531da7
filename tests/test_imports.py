"""Imports form a graph of packages without circles, and nothing heavy is imported before it is needed."""

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

# what each package may import, from the lowest up; docs/architecture.md says what each is for
MAY_IMPORT = {
    "core": "",
    "tokenizers": "core",
    "checkpoint": "core",
    "config": "core",
    "grammar": "core tokenizers",
    "nn": "core config",
    "cache": "core nn",
    "chat": "core tokenizers grammar",
    "models": "core config nn cache",
    "kernels": "core nn cache",
    "data": "core tokenizers nn chat",
    "cost": "core config nn cache models",
    "generation": "core tokenizers config grammar nn cache chat kernels data",
    "hf": "core tokenizers config nn chat models generation",
    "evaluate": "core tokenizers config nn models data generation",
    "introspect": "core tokenizers nn models data generation evaluate",
    "viz": "core config nn models evaluate introspect",
    "run": "core tokenizers checkpoint config nn chat models kernels data generation hf evaluate introspect",
    "explain": "core tokenizers config nn cache models kernels data cost generation introspect viz run",
    "serve": "core tokenizers config chat models kernels data generation evaluate introspect viz run explain",
    "export": "core tokenizers config nn chat models cost hf run",
    "train": "core tokenizers checkpoint config grammar nn cache chat models kernels data cost generation "
    "evaluate introspect viz run export",
    "autoconfig": "core tokenizers config chat data run export train",
    "estimate": "core tokenizers config nn cache models kernels data cost viz run export train",
    "compare": "core tokenizers checkpoint config nn cache models kernels data cost generation evaluate viz "
    "run train",
    "api": "core config run train autoconfig compare",
    "lab": "core tokenizers config nn cache models kernels data generation evaluate viz run train",
    "cli": "core tokenizers checkpoint config chat models kernels data cost generation hf evaluate "
    "introspect viz run explain serve export train autoconfig estimate compare lab",
}
PUBLIC_FACE = {
    "core",
    "config",
    "models",
    "run",
    "estimate",
    "api",
}  # what polyhead/__init__.py imports when it is used
READS_VERSION = {"train", "cli"}  # import polyhead itself, for its version


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


def package(name: str) -> str:
    """The package of a module: "nn" for "polyhead.nn.kv", "" for polyhead itself."""
    return name.split(".")[1] if "." in name else ""


def package_graph() -> dict[str, dict[str, set[str]]]:
    """For each package the packages that it imports, each with the modules that do, also for types alone and
    in functions.
    """
    graph: dict[str, dict[str, set[str]]] = {}
    for path in MODULES:
        own = package(dotted(path))
        for name in imports(ast.walk(ast.parse(path.read_text()))):
            if package(name) != own:
                graph.setdefault(own, {}).setdefault(package(name), set()).add(dotted(path))
    return graph


def test_every_package_has_a_row() -> None:
    packages = {package(dotted(path)) for path in MODULES} - {"", "__main__"}
    assert packages == set(MAY_IMPORT)


def test_no_module_lies_loose() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("own", MAY_IMPORT)
def test_a_package_imports_what_its_row_allows(own: str) -> None:
    found = package_graph().get(own, {})
    allowed = {*MAY_IMPORT[own].split(), *({""} & found.keys() if own in READS_VERSION else ())}
    surplus = {name: sorted(modules) for name, modules in found.items() if name not in allowed}
    assert not surplus, f"{own} imports what its row does not allow"
    assert not allowed - found.keys(), f"{own} does not import these any more: take them out of its row"


def test_the_public_face_imports_little() -> None:
    assert set(package_graph()[""]) == PUBLIC_FACE


def test_packages_form_no_circle() -> None:
    order = list(MAY_IMPORT)
    upward = {
        (own, name)
        for own, names in MAY_IMPORT.items()
        for name in names.split()
        if order.index(name) > order.index(own)
    }
    assert upward == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports inside of functions and under TYPE_CHECKING count; only the root, which is lazy, does not."""
    graph = {
        dotted(path): {
            name
            for name in imports(ast.walk(ast.parse(path.read_text())))
            if name not in (dotted(path), "polyhead")
        }
        for path in MODULES
        if path.parent != ROOT
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
            {"torch", "uvicorn", "starlette", "prometheus_client"},
        ),
        (
            "from polyhead.cli import main; main(['export', '--help'])",
            {"torch", "onnxruntime", "onnxscript", "ctranslate2"},
        ),
        ("import polyhead.config.recipe", {"torch"}),
        ("import polyhead.run.recipe", {"torch"}),
    ],
)
def test_nothing_heavy_is_imported_early(code: str, absent: set[str]) -> None:
    script = f"import sys; {code}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stderr.split())


def test_a_config_is_made_without_torch() -> None:
    """Only a registry imports parts, whose signatures are the schema of their options; a config itself has
    none of it.
    """
    modules = sorted(name for name in NAMES if package(name) == "config")
    script = (
        "import sys, importlib; sys.modules['torch'] = None\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        "from polyhead.core.registry import Registry\n"
        "Registry.check = lambda registry, choice: choice\n"
        "from polyhead.config.model import ModelConfig\n"
        "config = ModelConfig(vocab_size=9, preset='gpt2', layer_pattern=[{'block': 'lstm'}, {}])\n"
        "assert (config.n_layers, config.head_dim, config.d_ff) == (12, 64, 3072)\n"
        "assert not any(name.startswith('polyhead.nn') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
