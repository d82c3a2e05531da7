import pytest
import safetensors.torch
import torch
from tests.checkpoint.checkpoint_helpers import has_same_bits, is_identical

from polyhead.checkpoint.checkpoint import read_checkpoint, save_checkpoint
from polyhead.checkpoint.safetensors_io import (
    SAFETENSORS_DTYPES,
    check_tensors,
    count_file_bytes,
    make_header,
    read_safetensors,
)
from polyhead.core.errors import UserError


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES, ids=str)
def test_every_dtype_is_saved_bit_for_bit(tmp_path, dtype):
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (6 * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(2, 3)
    tensors = {
        "matrix": tensor,
        "scalar": tensor[0, 0],
        "transposed": tensor.T,
        "slice": tensor[:, 1:],
        "empty": tensor[:0],
        "every second": raw.view(dtype)[::2],
    }
    path = save_checkpoint(tmp_path, 1, {"all": tensors}, {})
    assert is_identical(read_checkpoint(path).tensors["all"], tensors)
    file = path / "all.safetensors"
    assert file.stat().st_size == count_file_bytes(tensors)
    assert has_same_bits(safetensors.torch.load_file(file)["transposed"], tensor.T)


def test_tied_tensors_are_written_once_and_stay_tied(tmp_path):
    table = torch.randn(100, 8)
    tensors = {"embedding": table, "output": table.detach(), "half": table[:50], "other": table.clone()}
    path = save_checkpoint(tmp_path, 1, {"model": tensors}, {})
    num_bytes = len(make_header(tensors)[0]) + 4 * 8 * (100 + 50 + 100)
    assert (path / "model.safetensors").stat().st_size == num_bytes
    result = read_checkpoint(path).tensors["model"]
    assert is_identical(result, tensors)
    assert result["embedding"].data_ptr() == result["output"].data_ptr()


def test_tensors_that_do_not_fit_are_named():
    expected = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    check_tensors(expected, expected, "x")
    tensors = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(4), "d": torch.zeros(1)}
    with pytest.raises(UserError) as error:
        check_tensors(tensors, expected, "step-3")
    assert str(error.value) == (
        "step-3 does not match: 'c' is missing; 'd' is unexpected; 'a' is torch.float64 [2], expected "
        "torch.float32 [2]; 'b' is torch.float32 [4], expected torch.float32 [3]"
    )


def with_size(size, header):
    return size.to_bytes(8, "little") + header


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        with_size(1 << 62, b""),
        with_size(200_000_000, b" " * 100),
        with_size(2, b"[]"),
        with_size(4, b"null"),
        with_size(60, b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1000000]}}'),
        with_size(40, b'{"__metadata__":{"a":["b"]}}'.ljust(40)),
        with_size(20, b'{"__metadata__": 3 }'),
        with_size(9000, b"[" * 9000),
    ],
    ids=range(10),
)
def test_invalid_file_is_named(data):
    with pytest.raises(UserError, match=r"x\.safetensors"):
        read_safetensors(data, "x.safetensors")
