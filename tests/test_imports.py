"""Imports form a graph of packages without circles, and nothing heavy is imported before it is needed."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import yaml
from tests.run.run_helpers import make_run
from tests.source_files import ALL_MODULES, LAB, ROOT, walk_file

from polyhead.core.extras import EXTRAS, find_extra

# what each package may import, from the lowest up
MAY_IMPORT = yaml.safe_load(Path(__file__).with_name("package_imports.yaml").read_text())
# what polyhead/__init__.py imports when it is used
PUBLIC_FACE = {"core", "config", "models", "run", "estimate", "api"}
USES_FACE = {"train", "cli", "polyhead_lab"}  # import polyhead itself, for its version or its public names


def module_name(path):
    root = LAB if LAB in path.parents else ROOT
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path) for path in ALL_MODULES}
PACKAGES = {"polyhead", "polyhead_lab"}


def imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if (node.module or "").split(".")[0] in PACKAGES:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in NAMES else str(node.module)


def package(name):
    """The package of a module: "nn" of "polyhead.nn.kv", "" of polyhead itself, else a top-level package."""
    first, *inner = name.split(".")
    return first if first != "polyhead" else inner[0] if inner else ""


def package_graph():
    """The imports of each package with the modules that do, also for types alone and in functions."""
    graph = {}
    for path in ALL_MODULES:
        package_name = package(module_name(path))
        for name in imports(walk_file(path)):
            if package(name) != package_name:
                graph.setdefault(package_name, {}).setdefault(package(name), set()).add(module_name(path))
    return graph


def test_every_package_has_a_row():
    packages = {package(module_name(path)) for path in ALL_MODULES} - {"", "__main__"}
    assert packages == set(MAY_IMPORT)

    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_packages_import_what_their_rows_allow():
    graph = package_graph()
    for package_name, row in MAY_IMPORT.items():
        imported = graph.get(package_name, {})
        allowed = {*row.split(), *({""} & imported.keys() if package_name in USES_FACE else ())}
        surplus = {name: sorted(modules) for name, modules in imported.items() if name not in allowed}
        assert not surplus, f"{package_name} imports what its row does not allow"
        unused = allowed - imported.keys()
        assert not unused, f"{package_name} no longer imports these: take them out of its row"
    assert set(graph[""]) == PUBLIC_FACE


def test_packages_form_no_circle():
    order = list(MAY_IMPORT)
    for i, (package_name, names) in enumerate(MAY_IMPORT.items()):
        assert not set(names.split()) & set(order[i:]), package_name


def test_modules_form_no_circle():
    """Imports inside of functions and under TYPE_CHECKING count; only the root, which is lazy, does not."""
    modules = [path for path in ALL_MODULES if path.parent != ROOT]
    graph = {module_name(path): {*imports(walk_file(path))} for path in modules}
    graph = {name: imported - {name, "polyhead"} for name, imported in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def room(name):
    """The folder of a package that a module is in, or the module itself beside the folders."""
    return ".".join(name.split(".")[1:3])


KNOTS = [
    {"compare.cost_metrics", "compare.tasks"},
    {"data.batching", "data.stores"},
    {"hf.config_map", "hf.families", "hf.family", "hf.tokenizers"},
    {"train.distributed", "train.optim"},
]
"""Rooms that import one another in a circle: none may be added."""


def test_rooms_of_packages_form_no_new_circle():
    reached = {}  # room -> rooms that it imports, then also those that they import
    for name, path in ((module_name(path), path) for path in ALL_MODULES):
        others = {room(other) for other in imports(walk_file(path)) if package(other) == package(name)}
        reached.setdefault(room(name), set()).update(others - {room(name), package(name)})
    for _ in range(8):  # paths of up to 2 ** 8 imports
        for others in reached.values():
            others.update(*(reached.get(other, ()) for other in [*others]))
    knots = [{other for other in others if name in reached[other]} for name, others in reached.items()]
    assert [knot for knot in knots if knot and not any(knot <= known for known in KNOTS)] == []


def runs_at_import(node):
    """The nodes below a node that run when its module is imported; of a try block none, it has a fallback."""
    for child in ast.iter_child_nodes(node):
        lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)
        if not lazy and not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from runs_at_import(child)


def import_extras(nodes):
    """The extras that install what the nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (find_extra(alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield find_extra((node.module or "").split(".")[0])


NEEDS_EXTRA = {
    "demo": {"polyhead.data.synthetic.synthetic_phrases"},
    "export": {f"polyhead.export.{name}" for name in ("ct2_specs", "ctranslate2", "gguf", "onnx")},
    "serve": {name for name in NAMES if package(name) == "serve"},
}
"""The modules that cannot be imported without an extra: a verb imports them late."""


def test_modules_are_imported_without_extras():
    nodes = {module_name(path): list(runs_at_import(ast.parse(path.read_text()))) for path in ALL_MODULES}
    graph = {name: {*imports(inner)} for name, inner in nodes.items()}
    extras = {name: {*import_extras(inner)} for name, inner in nodes.items()}
    for extra in EXTRAS:
        needing = {name for name in NAMES if extra in extras[name]}
        while more := {name for name, imported in graph.items() if imported & needing} - needing:
            needing |= more
        assert needing <= NEEDS_EXTRA.get(extra, set()), extra


NOT_IMPORTED = {
    "import polyhead": "torch pydantic typer",
    "from polyhead.cli import main; assert main(['--help']) == 0": "torch pydantic typer rich yaml numpy",
    "from polyhead.cli import main; main(['train', '--help'])": "torch",
    "from polyhead.cli import main; main(['translate', '--help'])": "torch",
    "from polyhead.cli import main; main(['serve', '--help'])": "torch uvicorn starlette prometheus_client",
    "from polyhead.cli import main; main(['export', '--help'])": "torch onnxruntime onnxscript ctranslate2",
    "import polyhead.config.recipe": "torch",
    "import polyhead.run.recipe": "torch",
}
"""Code, and the modules that it does not import."""
IMPORT_ORDERS = [
    "import polyhead as ph",
    "import polyhead.train.signals\nimport polyhead as ph",
    "import polyhead as ph\nph.train\nimport polyhead.train.signals",
    "import polyhead as ph\nimport polyhead.train.signals, polyhead.compare.sweep, polyhead.config.recipe",
    "from polyhead import train, compare, init_recipe\nimport polyhead.config.recipe as module\n"
    "assert module.Recipe\nimport polyhead as ph",
    "from polyhead.train import signals\nfrom polyhead.compare.sweep import Axis\n"
    "from polyhead.config.recipe import Recipe\nimport polyhead as ph",
    "import importlib\nimportlib.import_module('polyhead.compare.plan')\nimport polyhead as ph",
    "import importlib, polyhead as ph\nph.train\nimportlib.reload(ph)",
]
CHECK_NAMES = """
import inspect, sys
assert callable(ph.train) and callable(ph.compare) and callable(ph.init_recipe) and callable(ph.estimate)
assert list(inspect.signature(ph.train).parameters) == ['recipe', 'changes', 'resume', 'quiet']
import polyhead.train.signals as signals, polyhead.compare.sweep, polyhead.config.recipe
assert sys.modules['polyhead.train.signals'] is signals is ph.train.signals is polyhead.train.signals
assert polyhead.compare.sweep.Axis and polyhead.config.recipe.read_recipe and polyhead.config.recipe.Recipe
"""
CONFIG_WITHOUT_TORCH = f"""
import sys, importlib
sys.modules["torch"] = None
for name in {sorted(name for name in NAMES if package(name) == "config")}:
    importlib.import_module(name)
from polyhead.core.registry import Registry
Registry.check = lambda registry, choice: choice  # it imports parts, whose signatures are their options
from polyhead.config.model import ModelConfig
config = ModelConfig(vocab_size=9, preset="gpt2", layer_pattern=[{{"block": "lstm"}}, {{}}])
assert (config.n_layers, config.head_dim, config.d_ff) == (12, 64, 3072)
assert not any(name.startswith("polyhead.nn") for name in sys.modules)
"""
EACH_IN_A_CHILD = """
import os, sys
for code in {snippets!r}:
    if os.fork() == 0:
        exec(code, {{}})
        print(*sys.modules, file=sys.stderr, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, code
"""


def test_heavy_modules_are_imported_late(tmp_path):
    """In one process: its children import what they need, and names are those of functions in any order."""
    paths = [str(tmp_path / position) for position in ("learned", "t5", "shaw", "disentangled")]
    for path in paths:
        make_run(position=Path(path).name, tie_embeddings="none").save(Path(path))
    cases = NOT_IMPORTED | {order + CHECK_NAMES: "torch" for order in IMPORT_ORDERS}
    cases[CONFIG_WITHOUT_TORCH] = ""
    # torch's compiler takes a second to import, and initialising a meta tensor imports it
    cases[f"import polyhead as ph\nfor path in {paths}: ph.load(path, fast=True)"] = "torch._dynamo"
    script = EACH_IN_A_CHILD.format(snippets=list(cases))
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for (code, absent), modules in zip(cases.items(), process.stderr.splitlines(), strict=True):
        assert "polyhead" in modules.split(), code
        assert not set(absent.split()) & set(modules.split()), code
