"""Weights that are rounded where they lie in the file, against the same rounded from a model in fp32, for
all families.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hf.conftest import VOCABULARY, make
from tests.hf.families import causal_cases, encoders, encoders_cases, seq2seq, seq2seq_cases

import polyhead as ph
from polyhead.hf.load import load_model
from polyhead.kernels.pack_model import (
    QUANTIZED_LINEARS,
    linear_factory,
    pack_model,
    packed_dtype,
)
from polyhead.nn.state import named_state
from polyhead.run.load import LOAD_DTYPES

DECODERS = [pytest.param(cases[0], id=name) for name, cases in causal_cases.CASES.items()]
ENCODERS = [pytest.param(cases[0], id=name) for name, cases in encoders_cases.CASES.items()]
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)


def halved(directory: Path, dtype: torch.dtype) -> None:
    """The same files with weights of that type."""
    path = directory / "model.safetensors"
    save_file({name: x.to(dtype) for name, x in load_file(path).items()}, path, {"format": "pt"})


def check(directory: Path, kind: str, *inputs: torch.Tensor) -> None:
    """What load makes of the files is what fp32 becomes, to the last bit."""
    kept = LOAD_DTYPES[kind]
    found = ph.load(directory, dtype=kind, fast=True).model
    wanted = pack_model(load_model(directory).to(kept), linear_factory(kind))
    assert packed_dtype(found) == (kind if kind in QUANTIZED_LINEARS else str(kept).removeprefix("torch."))
    assert not any(type(part) is torch.nn.Linear for part in found.modules()), (
        "a weight still lies in the file"
    )
    assert {x.dtype for x in found.parameters()} <= {torch.float32, kept}
    with torch.inference_mode():
        assert torch.equal(found(*inputs), wanted(*inputs))


@pytest.mark.parametrize("case", DECODERS)
def test_language_models_are_rounded_from_the_file_as_from_fp32(case: Any, tmp_path: Path) -> None:
    make(tmp_path, case.config, **case.sizes)
    halved(tmp_path, torch.bfloat16)
    for kind in ("int4", "bf16", "fp32"):
        check(tmp_path, kind, torch.randint(5, 300, (3, 20)))


@pytest.mark.parametrize("case", ENCODERS)
def test_encoders_are_rounded_from_the_file_as_from_fp32(case: Any, tmp_path: Path) -> None:
    encoders.published(case, tmp_path)
    halved(tmp_path, torch.bfloat16)
    for kind in ("int8", "bf16"):
        check(tmp_path, kind, torch.randint(5, VOCABULARY, (3, 20)))


@pytest.mark.parametrize("case", seq2seq.first(seq2seq_cases.CASES))
def test_encoder_decoders_are_rounded_from_the_file_as_from_fp32(case: Any, tmp_path: Path) -> None:
    seq2seq.published(tmp_path, case)
    halved(tmp_path, torch.bfloat16)
    check(tmp_path, "int4", seq2seq.ids(3, 20), seq2seq.ids(3, 17))


@HALVES
def test_files_of_every_type_are(dtype: torch.dtype, tmp_path: Path) -> None:
    case = causal_cases.CASES["gpt2"][0]  # its matrices lie turned round
    make(tmp_path, case.config, **case.sizes)
    halved(tmp_path, dtype)
    for kind in ("int8", "bf16", "fp32"):
        check(tmp_path, kind, torch.randint(5, 300, (3, 20)))


def in_file(tensor: torch.Tensor, path: Path) -> bool:
    """Whether its memory is the file itself."""
    regions = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [at[0].split("-") for at in regions if at[-1] == str(path)]
    return any(int(first, 16) <= tensor.data_ptr() < int(last, 16) for first, last in ends)


@pytest.mark.parametrize("published", [True, False])
def test_a_large_model_is_never_twice_in_memory(
    published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What packing takes over is the file's until then, with fast where it has the type that is wanted."""
    case, seen = causal_cases.CASES["llama"][0], {}

    def packing(model: torch.nn.Module, way: Any) -> torch.nn.Module:
        projections = [x for name, x in model.named_parameters() if name.endswith("_proj.weight")]
        seen[kind] = {in_file(x, directory / "model.safetensors") for x in projections}
        return pack_model(model, way)

    make(tmp_path / "theirs", case.config, **case.sizes)
    ph.load(tmp_path / "theirs").save(tmp_path / "ours")
    directory = tmp_path / ("theirs" if published else "ours")
    stored = "bf16" if published else "fp32"
    if published:
        halved(directory, torch.bfloat16)
    monkeypatch.setattr("polyhead.run.load.pack_model", packing)
    for kind in ("int8", "int4", "bf16", "fp32"):
        ph.load(directory, dtype=kind, fast=True)
    assert seen == {kind: {kind in (*QUANTIZED_LINEARS, stored)} for kind in seen}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_run_of_our_own_that_is_not_packed_has_memory_of_its_own(dtype: str, tmp_path: Path) -> None:
    """What is learned must not be lost, nor change with the file."""
    case = causal_cases.CASES["llama"][0]
    make(tmp_path / "theirs", case.config, **case.sizes)
    ph.load(tmp_path / "theirs").save(tmp_path / "ours")
    model = ph.load(tmp_path / "ours", dtype=dtype).model
    assert not any(in_file(x, tmp_path / "ours" / "model.safetensors") for x in named_state(model).values())
    assert {x.dtype for x in named_state(model).values()} == {LOAD_DTYPES[dtype]}


def test_a_model_that_is_read_in_fp32_has_memory_of_its_own(tmp_path: Path) -> None:
    """What is learned must not be lost, nor change with the file."""
    case = causal_cases.CASES["gpt2"][0]
    make(tmp_path, case.config, **case.sizes)
    model, path = load_model(tmp_path), tmp_path / "model.safetensors"
    before = {name: x.clone() for name, x in named_state(model).items()}
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size // 2)
        file.write(b"\x77" * (size - size // 2))
    assert all(torch.equal(x, before[name]) for name, x in named_state(model).items())
    assert all(x.is_contiguous() for x in before.values())
