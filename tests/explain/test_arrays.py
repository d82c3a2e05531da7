"""Arrays survive being stored, in Python and in the script of the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

from polyhead.core.errors import NotFiniteError
from polyhead.explain.arrays import OPERATIONS, ArrayReader, ArrayStore

SCRIPT = """
openArrays(JSON.parse(require("fs").readFileSync(0, "utf8"))).then((arrays) => {
  const out = {};
  for (const name of Object.keys(arrays.values)) out[name] = [...arrays.get(name).data];
  console.log(JSON.stringify(out));
});
"""


def read_back(store: ArrayStore) -> ArrayReader:
    return ArrayReader.from_document({"data": store.pack(), "values": json.loads(json.dumps(store.values))})


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e5])
@pytest.mark.parametrize("outlier", [1.0, 3000.0])
def test_a_stored_array_is_exact_to_a_millionth_of_its_usual_size(scale: float, outlier: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 32) * scale
    x[3, 7] *= outlier
    store = ArrayStore()
    store.store("x", x)
    error = np.abs(read_back(store)("x") - x.double().numpy())
    assert error.max() <= 5e-7 * scale
    assert error.max() > 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_are_exact(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 70_000, -3]]).to(dtype)
    store = ArrayStore()
    store.store("x", x)
    store.store("zero", torch.zeros(2, 3))
    read = read_back(store)
    assert read("x").tolist() == x.long().tolist()
    assert read("zero").tolist() == torch.zeros(2, 3).tolist()


def test_half_precision_is_stored() -> None:
    x = torch.randn(3, 4).to(torch.bfloat16)
    store = ArrayStore()
    store.store("x", x)
    assert read_back(store)("x") == pytest.approx(x.float().numpy(), abs=1e-6)


def test_numbers_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(NotFiniteError):
        ArrayStore().store("x", torch.tensor([1.0, float("nan")]))


def test_rounding_errors_of_many_sums_do_not_add_up() -> None:
    """Each branch makes up for the errors before it."""
    torch.manual_seed(0)
    store, x = ArrayStore(), torch.randn(8, 16)
    name = store.store("x0", x)
    for i in range(200):
        branch = torch.randn(8, 16)
        store.store(f"branch{i}", branch)
        x = x.double() + branch
        name = store.derive_sum(f"x{i + 1}", [name, f"branch{i}"], x)
    assert np.abs(read_back(store)(name) - x.numpy()).max() < 1e-6


def test_the_script_reads_the_same_numbers() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    documents = [
        explain_walk(make_run(kind="decoder", position="rope", n_kv_heads=2), TEXT, n_shown=5),
        explain_walk(make_run(kind="decoder", position={"name": "rope", "layout": "interleaved"}), TEXT),
        explain_walk(make_run(kind="decoder", attention="kernel", position="none"), TEXT, n_shown=5),
        explain_walk(make_run(norm="rmsnorm"), TEXT, TARGET),
        explain_walk(make_run(kind="encoder", norm="batchnorm", position="shaw"), TEXT),
    ]
    script = (files("polyhead.explain") / "arrays.js").read_text() + SCRIPT
    used = set()
    for document in documents:
        ran = subprocess.run([node, "-e", script], input=json.dumps(document), capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        read, numbers = ArrayReader.from_document(document), json.loads(ran.stdout)
        assert numbers.keys() == document["values"].keys()
        for name, data in numbers.items():
            assert data == pytest.approx(read(name).ravel().tolist(), abs=1e-12, rel=1e-12), name
        used |= {value["op"] for value in document["values"].values() if "op" in value}
    assert used == set(OPERATIONS)


def test_the_script_has_the_operations_of_the_package() -> None:
    script = Path(str(files("polyhead.explain") / "arrays.js")).read_text()
    for operation in OPERATIONS:
        assert f"\n  {operation}: (" in script
