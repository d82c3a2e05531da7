"""What may never be written in the package, found by reading its syntax."""

import ast

import pytest
from tests.source_files import ALL_MODULES, walk_file

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "torch.load", "torch.save"}
UNSAFE_CALLS |= {"yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load"}
UNSAFE_OPTIONS = {"shell=True", "allow_pickle=True"}
LONGEST_FILE = 500  # lines


def find_unsafe(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in UNSAFE_MODULES:
                yield str(node.module)
            yield from sorted({f"{node.module}.{alias.name}" for alias in node.names} & UNSAFE_CALLS)
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function in UNSAFE_CALLS:
                yield function
            options = {ast.unparse(keyword) for keyword in node.keywords}
            yield from (f"{function}({option})" for option in sorted(options & UNSAFE_OPTIONS))


def find_huge_negatives(nodes):
    """Finite numbers used for minus infinity: they overflow in half precision and leak when added twice."""
    for node in nodes:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = getattr(node.operand, "value", None)
            if isinstance(value, int | float) and 1e4 <= value < float("inf"):
                yield ast.unparse(node)
        if isinstance(node, ast.Attribute) and node.attr == "min" and "finfo" in ast.unparse(node.value):
            yield ast.unparse(node)


@pytest.mark.acceptance("F1")
def test_no_module_runs_code_from_a_file():
    example = "import pickle\nfrom torch import load\nmodel.eval()\nnp.load(path, allow_pickle=True)"
    unsafe = list(find_unsafe(ast.walk(ast.parse(example))))
    assert unsafe == ["pickle", "torch.load", "np.load(allow_pickle=True)"]
    assert {path.name: unsafe for path in ALL_MODULES if (unsafe := list(find_unsafe(walk_file(path))))} == {}


@pytest.mark.acceptance("A2", "A3")
def test_masks_use_no_huge_number():
    example = "scores.masked_fill(mask, -1e9) + torch.finfo(x.dtype).min + float('-inf') + -100"
    assert len(list(find_huge_negatives(ast.walk(ast.parse(example))))) == 2
    assert {
        path.name: huge for path in ALL_MODULES if (huge := list(find_huge_negatives(walk_file(path))))
    } == {}


def test_files_are_short():
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}
