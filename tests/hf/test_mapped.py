from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hf.conftest import VOCABULARY
from tests.hf.families import causal_cases, encoders_cases, seq2seq_cases
from tests.hf.load_helpers import load_model
from tests.hf.tables import make_case

import polyhead as ph
from polyhead.kernels.linear import make_linear
from polyhead.kernels.pack_model import QUANTIZED_LINEARS, linear_factory, pack_model, packed_dtype
from polyhead.nn.state import named_state
from polyhead.run.load import LOAD_DTYPES


def convert_weights(directory, dtype):
    path = directory / "model.safetensors"
    save_file({name: x.to(dtype) for name, x in load_file(path).items()}, path, {"format": "pt"})


def check_rounding(directory, dtype, *inputs):
    dense_dtype, model = LOAD_DTYPES[dtype], ph.load(directory, dtype=dtype, fast=True).model
    expected = pack_model(load_model(directory).to(dense_dtype), linear_factory(dtype))
    name = dtype if dtype in QUANTIZED_LINEARS else str(dense_dtype).removeprefix("torch.")
    assert packed_dtype(model) == name
    mapped_flags = [part for part in model.modules() if type(part) is torch.nn.Linear]
    assert not mapped_flags, "a weight still lies in the file"
    assert {x.dtype for x in model.parameters()} <= {torch.float32, dense_dtype}
    with torch.inference_mode():
        assert torch.equal(model(*inputs), expected(*inputs))


def random_ids(*shape):
    return torch.randint(5, VOCABULARY, shape)


FAMILIES = [*((f"{family}-0", ("int4", "bf16", "fp32"), ((3, 20),)) for family in causal_cases.CASES)]
FAMILIES += [*((f"{family}-0", ("int8", "bf16"), ((3, 20),)) for family in encoders_cases.CASES)]
FAMILIES += [*((f"{family}-0", ("int4",), ((3, 20), (3, 17))) for family in seq2seq_cases.CASES)]


@pytest.mark.parametrize(("case", "dtypes", "shapes"), FAMILIES)
def test_rounded_families(case, dtypes, shapes, tmp_path):
    make_case(tmp_path, case)
    convert_weights(tmp_path, torch.bfloat16)
    for dtype in dtypes:
        check_rounding(tmp_path, dtype, *(random_ids(*shape) for shape in shapes))


@pytest.mark.parametrize("stored_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rounding_from_every_stored_dtype(stored_dtype, tmp_path):
    make_case(tmp_path, "gpt2-0")  # whose matrices are transposed in files
    convert_weights(tmp_path, stored_dtype)
    for dtype in ("int8", "bf16", "fp32"):
        check_rounding(tmp_path, dtype, random_ids(3, 20))


def is_mapped(tensor, path):
    regions = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [fields[0].split("-") for fields in regions if fields[-1] == str(path)]
    return any(int(first, 16) <= tensor.data_ptr() < int(last, 16) for first, last in ends)


@pytest.mark.parametrize("is_published", [True, False])
def test_large_model_is_never_in_memory_twice(is_published, tmp_path, monkeypatch):
    """The weights that packing takes are the file's, with fast also where they have the dtype."""
    mapped_flags = {}

    def pack_and_record(model, factory=None, layers=None):
        projections = [x for name, x in model.named_parameters() if name.endswith("_proj.weight")]
        mapped_flags[dtype] = {is_mapped(x, directory / "model.safetensors") for x in projections}
        return pack_model(model, factory or make_linear, layers)

    directory, stored_dtype = tmp_path / "checkpoint", "bf16"
    make_case(directory, "llama-0")
    if is_published:
        convert_weights(directory, torch.bfloat16)
    else:
        ph.load(directory).save(tmp_path / "run")
        directory, stored_dtype = tmp_path / "run", "fp32"
    for module in ("load", "packed_weights"):
        monkeypatch.setattr(f"polyhead.run.{module}.pack_model", pack_and_record)
    dtypes = ("int8", "int4", "bf16", "fp32")
    for dtype in dtypes:
        ph.load(directory, dtype=dtype, fast=True)
    assert mapped_flags == {dtype: {dtype in (*QUANTIZED_LINEARS, stored_dtype)} for dtype in dtypes}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_unpacked_run_owns_its_memory(dtype, tmp_path):
    """Further training must neither be lost nor change the file."""
    make_case(tmp_path / "checkpoint", "llama-0")
    ph.load(tmp_path / "checkpoint").save(tmp_path / "run")
    state = named_state(ph.load(tmp_path / "run", dtype=dtype).model)
    assert not any(is_mapped(x, tmp_path / "run" / "model.safetensors") for x in state.values())
    assert {x.dtype for x in state.values()} == {LOAD_DTYPES[dtype]}


def test_fp32_model_owns_its_memory(tmp_path):
    make_case(tmp_path, "gpt2-0")
    state, path = named_state(load_model(tmp_path)), tmp_path / "model.safetensors"
    expected = {name: x.clone() for name, x in state.items()}
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size // 2)
        file.write(b"\x77" * (size - size // 2))
    assert all(torch.equal(x, expected[name]) for name, x in state.items())
    assert all(x.is_contiguous() for x in expected.values())
