import json
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import explain_config, read_document

from polyhead.core.errors import NotFiniteError
from polyhead.explain.arrays import OPERATIONS, ArrayStore

SCRIPT = """
openArrays(JSON.parse(require("fs").readFileSync(0, "utf8"))).then((arrays) => {
  const out = {};
  for (const name of Object.keys(arrays.values)) out[name] = [...arrays.get(name).data];
  console.log(JSON.stringify(out));
});
"""


def read_back(store):
    return read_document({"data": store.pack(), "values": json.loads(json.dumps(store.values))})


def roundtrip(x):
    store = ArrayStore()
    store.store("x", x)
    return read_back(store)("x")


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e5])
@pytest.mark.parametrize("outlier", [1.0, 3000.0])
def test_stored_array_is_exact_to_a_millionth(scale, outlier):
    torch.manual_seed(0)
    x = torch.randn(20, 32) * scale
    x[3, 7] *= outlier
    error = np.abs(roundtrip(x) - x.double().numpy())
    assert 0 < error.max() <= 5e-7 * scale


def test_dtypes_are_stored():
    for dtype in (torch.int64, torch.bool):
        x = torch.tensor([[0, 1, 70_000, -3]]).to(dtype)
        assert roundtrip(x).tolist() == x.long().tolist()
    assert roundtrip(torch.zeros(2, 3)).tolist() == torch.zeros(2, 3).tolist()
    x = torch.randn(3, 4).to(torch.bfloat16)
    assert roundtrip(x) == pytest.approx(x.float().numpy(), abs=1e-6)
    with pytest.raises(NotFiniteError):
        ArrayStore().store("x", torch.tensor([1.0, float("nan")]))


def test_rounding_errors_of_sums_do_not_accumulate():
    """Each branch compensates the errors before it."""
    torch.manual_seed(0)
    store, x = ArrayStore(), torch.randn(8, 16)
    name = store.store("x0", x)
    for i in range(200):
        branch = torch.randn(8, 16)
        store.store(f"branch{i}", branch)
        x = x.double() + branch
        name = store.derive_sum(f"x{i + 1}", [name, f"branch{i}"], x)
    assert np.abs(read_back(store)(name) - x.numpy()).max() < 1e-6


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_script_reads_same_numbers():
    script = (files("polyhead.explain") / "arrays.js").read_text() + SCRIPT
    operations = set()
    for config, options in (
        ({"kind": "decoder", "position": "rope", "n_kv_heads": 2}, {"n_shown": 5}),
        ({"kind": "decoder", "position": {"name": "rope", "layout": "interleaved"}}, {}),
        ({"kind": "decoder", "attention": "kernel", "position": "none"}, {"n_shown": 5}),
        ({"norm": "rmsnorm"}, {}),
        ({"kind": "encoder", "norm": "batchnorm", "position": "shaw"}, {}),
    ):
        document, read = explain_config(config, **options)
        command, text = [shutil.which("node"), "-e", script], json.dumps(document)
        process = subprocess.run(command, input=text, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        arrays = json.loads(process.stdout)
        assert arrays.keys() == document["values"].keys()
        for name, data in arrays.items():
            assert data == pytest.approx(read(name).ravel().tolist(), abs=1e-12, rel=1e-12), name
        operations |= {value["op"] for value in document["values"].values() if "op" in value}
    assert operations == set(OPERATIONS)
