"""What may never be written in the package, found by reading its syntax."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import polyhead

MODULES = sorted(Path(polyhead.__file__).parent.rglob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {
    "torch.load",
    "torch.save",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "os.system",
}


def unsafe(tree: ast.AST) -> list[str]:
    """Everything in a module that can run code it has read."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found += sorted(named & UNSAFE_ATTRIBUTES)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in UNSAFE_NAMES | UNSAFE_ATTRIBUTES:
                found.append(called)
            words = {ast.unparse(word) for word in node.keywords}
            found += [f"{called}({word})" for word in sorted(words & {"shell=True", "allow_pickle=True"})]
    return found


def huge_negatives(tree: ast.AST) -> list[str]:
    """Finite numbers used for minus infinity: they overflow in half precision and leak when added twice."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = getattr(node.operand, "value", None)
            if isinstance(value, int | float) and 1e4 <= value < float("inf"):
                found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node.attr == "min" and "finfo" in ast.unparse(node.value):
            found.append(ast.unparse(node))
    return found


@pytest.mark.acceptance("F1")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_nothing_can_run_code_from_a_file(path: Path) -> None:
    assert unsafe(ast.parse(path.read_text())) == []


@pytest.mark.acceptance("A2", "A3")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_masks_hold_no_huge_number(path: Path) -> None:
    assert huge_negatives(ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from pickle import loads", ["pickle"]),
        ("import torch\ntorch.load('x')", ["torch.load"]),
        ("from torch import load", ["torch.load"]),
        ("eval('1')", ["eval"]),
        ("model.eval()", []),
        ("yaml.load(text, Loader=yaml.SafeLoader)", ["yaml.load"]),
        ("yaml.safe_load(text)", []),
        ("run('x', shell=True)", ["run(shell=True)"]),
        ("np.load(path, allow_pickle=True)", ["np.load(allow_pickle=True)"]),
    ],
)
def test_the_gate_sees_what_it_should(code: str, found: list[str]) -> None:
    assert unsafe(ast.parse(code)) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("scores.masked_fill(mask, -1e9)", ["-1000000000.0"]),
        ("scores + torch.finfo(x.dtype).min", ["torch.finfo(x.dtype).min"]),
        ("float('-inf')", []),
        ("labels == -100", []),
    ],
)
def test_the_gate_sees_huge_numbers(code: str, found: list[str]) -> None:
    assert huge_negatives(ast.parse(code)) == found
