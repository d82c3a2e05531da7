"""Imports form a graph of packages without circles, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.source_files import MODULES, ROOT, walk_file

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


def module_name(path: Path) -> str:
    parts = ["polyhead", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path) for path in MODULES}


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
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
        package_name = package(module_name(path))
        for name in imports(walk_file(path)):
            if package(name) != package_name:
                graph.setdefault(package_name, {}).setdefault(package(name), set()).add(module_name(path))
    return graph


def test_every_package_has_a_row() -> None:
    packages = {package(module_name(path)) for path in MODULES} - {"", "__main__"}
    assert packages == set(MAY_IMPORT)


def test_every_module_is_in_a_package() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_packages_import_what_their_rows_allow() -> None:
    graph = package_graph()
    for package_name, row in MAY_IMPORT.items():
        imported = graph.get(package_name, {})
        allowed = {*row.split(), *({""} & imported.keys() if package_name in READS_VERSION else ())}
        surplus = {name: sorted(modules) for name, modules in imported.items() if name not in allowed}
        assert not surplus, f"{package_name} imports what its row does not allow"
        assert not allowed - imported.keys(), (
            f"{package_name} no longer imports these: take them out of its row"
        )


def test_public_face_imports_little() -> None:
    assert set(package_graph()[""]) == PUBLIC_FACE


def test_packages_form_no_circle() -> None:
    order = list(MAY_IMPORT)
    upward = {
        (package_name, name)
        for package_name, names in MAY_IMPORT.items()
        for name in names.split()
        if order.index(name) > order.index(package_name)
    }
    assert upward == set()


def test_modules_form_no_circle() -> None:
    """Imports inside of functions and under TYPE_CHECKING count; only the root, which is lazy, does not."""
    graph = {
        module_name(path): {
            name for name in imports(walk_file(path)) if name not in (module_name(path), "polyhead")
        }
        for path in MODULES
        if path.parent != ROOT
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


NOT_IMPORTED = {
    "import polyhead": "torch pydantic typer",
    "from polyhead.cli import main; main(['--help'])": "torch pydantic typer rich",
    "from polyhead.cli import main; main(['train', '--help'])": "torch",
    "from polyhead.cli import main; main(['translate', '--help'])": "torch",
    "from polyhead.cli import main; main(['serve', '--help'])": "torch uvicorn starlette prometheus_client",
    "from polyhead.cli import main; main(['export', '--help'])": "torch onnxruntime onnxscript ctranslate2",
    "import polyhead.config.recipe": "torch",
    "import polyhead.run.recipe": "torch",
}
"""Code, and the modules that it does not import."""
EACH_IN_A_CHILD = """
import os, sys
for code in {snippets!r}:
    if os.fork() == 0:
        exec(code)
        print(*sys.modules, file=sys.stderr, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, code
"""


def run_python(script: str) -> str:
    """What the script writes to standard error."""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_heavy_modules_are_imported_late() -> None:
    lines = run_python(EACH_IN_A_CHILD.format(snippets=list(NOT_IMPORTED))).splitlines()
    for (code, absent), modules in zip(NOT_IMPORTED.items(), lines, strict=True):
        assert "polyhead" in modules.split(), code
        assert not set(absent.split()) & set(modules.split()), code


def test_config_is_made_without_torch() -> None:
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
    run_python(script)
