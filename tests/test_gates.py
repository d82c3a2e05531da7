"""What may never be written in the package, found by reading its syntax."""

import ast
import re

import pytest
from tests.source_files import ALL_MODULES, walk_file

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "torch.load", "torch.save"}
UNSAFE_CALLS |= {"yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load"}
TENSOR_FIELDS = {"data", "grad", "requires_grad"}
UNSAFE_OPTIONS = {"shell=True", "allow_pickle=True"}
LONGEST_FILE = 500  # lines
CEILINGS = {
    "getattr or hasattr of a fixed name": 38,
    "type: ignore": 37,
    "attributes set on tensors": 0,
    "classes of objects replaced": 0,
}
"""What may only become less: lower a number when the count falls."""


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
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_MODULES}
    assert len(lengths) == len(ALL_MODULES)
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def find_tensor_attributes(function):
    """Attributes set on what the function's annotations call a Tensor: state belongs into an argument."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotations = {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation is not None}
    tensors = {name for name, annotation in annotations.items() if "Tensor" in annotation.split(" | ")}
    for node in ast.walk(function):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        value = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
        for target in targets:
            if isinstance(target, ast.Name) and re.match(r"torch\.\w+\(|\w+\.to\(", value):
                tensors.add(target.id)
            if isinstance(target, ast.Attribute) and target.attr not in TENSOR_FIELDS:
                yield from [ast.unparse(target)] if ast.unparse(target.value) in tensors else []


def count_gated(nodes, text):
    nodes = list(nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    names = [node.args[1] for node in calls if ast.unparse(node.func) in ("getattr", "hasattr")]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    attributes = {name for function in functions for name in find_tensor_attributes(function)}
    fixed = sum(isinstance(name, ast.Constant) for name in names)
    classes = len(re.findall(r"__class__ = |\"__class__\",", text))
    return dict(zip(CEILINGS, (fixed, text.count("type: ignore"), len(attributes), classes), strict=True))


def test_hidden_channels_only_become_fewer():
    example = "def f(x: Tensor):\n  x.note = getattr(x, 'old', 0)  # type: ignore\n  x.data = y.to(x)"
    example += "\n  x.__class__ = type(y)"
    assert list(count_gated(ast.walk(ast.parse(example)), example).values()) == [1, 1, 2, 1]
    counts = [count_gated(walk_file(path), path.read_text(encoding="utf-8")) for path in ALL_MODULES]
    totals = {name: sum(count[name] for count in counts) for name in CEILINGS}
    assert {name: total for name, total in totals.items() if total > CEILINGS[name]} == {}
