"""Tests of checkpoint/safetensors_io.py."""

import pytest
import safetensors.torch
import torch
from tests.checkpoint.checkpoint_helpers import same, same_bits

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.checkpoint.safetensors_io import (
    SAFETENSORS_DTYPES,
    check_tensors,
    count_file_bytes,
    make_header,
    read_safetensors,
)
from polyhead.core.errors import UserError


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit_and_other_programs_can_read_it(tmp_path, dtype):
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (6 * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(2, 3)
    tensors = {
        "matrix": tensor,
        "scalar": tensor[0, 0],
        "turned": tensor.T,
        "part": tensor[:, 1:],
        "no": tensor[:0],
        "every second": raw.view(dtype)[::2],
    }
    path = save_checkpoint(tmp_path, 1, {"all": tensors}, {})
    assert same(checkpoint.read_checkpoint(path).tensors["all"], tensors)
    file = path / "all.safetensors"
    assert file.stat().st_size == count_file_bytes(tensors)
    assert same_bits(safetensors.torch.load_file(file)["turned"], tensor.T)


def test_tied_tensors_are_written_once_and_come_back_tied(tmp_path):
    table = torch.randn(100, 8)
    tensors = {"embedding": table, "output": table.detach(), "half": table[:50], "other": table.clone()}
    path = save_checkpoint(tmp_path, 1, {"model": tensors}, {})
    found = checkpoint.read_checkpoint(path).tensors["model"]
    assert (path / "model.safetensors").stat().st_size == len(make_header(tensors)[0]) + 4 * 8 * (
        100 + 50 + 100
    )
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    assert found["embedding"].data_ptr() == found["output"].data_ptr()


def test_tensors_that_do_not_fit_are_named():
    want = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    check_tensors(want, want, "x")
    found = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(4), "d": torch.zeros(1)}
    with pytest.raises(UserError) as error:
        check_tensors(found, want, "step-3")
    assert str(error.value) == (
        "step-3 does not match: 'c' is missing; 'd' is unexpected; 'a' is torch.float64 [2], expected "
        "torch.float32 [2]; 'b' is torch.float32 [4], expected torch.float32 [3]"
    )


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        (1 << 62).to_bytes(8, "little"),
        (200_000_000).to_bytes(8, "little") + b" " * 100,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1000000]}}',
        (40).to_bytes(8, "little") + b'{"__metadata__":{"a":["b"]}}'.ljust(40),
        (20).to_bytes(8, "little") + b'{"__metadata__": 3 }',
        (9000).to_bytes(8, "little") + b"[" * 9000,
    ],
    ids=range(10),
)
def test_a_file_that_is_not_tensors_is_refused_in_a_line(data):
    with pytest.raises(UserError, match=r"x\.safetensors"):
        read_safetensors(data, "x.safetensors")
