import pytest
import safetensors.torch
import torch
from tests.checkpoint.checkpoint_helpers import has_same_bits, is_identical

from polyhead.checkpoint import safetensors_io
from polyhead.checkpoint.checkpoint import read_checkpoint, save_checkpoint
from polyhead.core.errors import UserError


@pytest.mark.parametrize("dtype", safetensors_io.SAFETENSORS_DTYPES, ids=str)
def test_every_dtype_is_saved_bit_for_bit(tmp_path, dtype):
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (6 * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(2, 3)
    tensors = {"matrix": tensor, "scalar": tensor[0, 0], "transposed": tensor.T, "slice": tensor[:, 1:]}
    tensors |= {"empty": tensor[:0], "every second": raw.view(dtype)[::2]}
    path = save_checkpoint(tmp_path, 1, {"all": tensors}, {})
    assert is_identical(read_checkpoint(path).tensors["all"], tensors)
    file = path / "all.safetensors"
    assert file.stat().st_size == safetensors_io.count_file_bytes(tensors)
    assert has_same_bits(safetensors.torch.load_file(file)["transposed"], tensor.T)


def test_tied_tensors_are_written_once_and_stay_tied(tmp_path):
    table = torch.randn(100, 8)
    tensors = {"embedding": table, "output": table.detach(), "half": table[:50], "other": table.clone()}
    path = save_checkpoint(tmp_path, 1, {"model": tensors}, {})
    num_bytes = len(safetensors_io.make_header(tensors)[0]) + 4 * 8 * (100 + 50 + 100)
    assert (path / "model.safetensors").stat().st_size == num_bytes
    result = read_checkpoint(path).tensors["model"]
    assert is_identical(result, tensors) and result["embedding"].data_ptr() == result["output"].data_ptr()


def test_tensors_that_do_not_fit_are_named():
    expected = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    safetensors_io.check_tensors(expected, expected, "x")
    tensors = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(4), "d": torch.zeros(1)}
    with pytest.raises(UserError) as error:
        safetensors_io.check_tensors(tensors, expected, "step-3")
    assert str(error.value) == (
        "step-3 does not match: 'c' is missing; 'd' is unexpected; 'a' is torch.float64 [2], expected "
        "torch.float32 [2]; 'b' is torch.float32 [4], expected torch.float32 [3]"
    )


INVALID = [
    (0, b""),
    (1 << 62, b""),
    (200_000_000, b" " * 100),
    (2, b"[]"),
    (4, b"null"),
    (60, b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1000000]}}'),
    (40, b'{"__metadata__":{"a":["b"]}}'.ljust(40)),
    (20, b'{"__metadata__": 3 }'),
    (9000, b"[" * 9000),
]


@pytest.mark.acceptance("F10")
@pytest.mark.parametrize("data", [b"", *(n.to_bytes(8, "little") + x for n, x in INVALID)], ids=range(10))
def test_invalid_file_is_named(data):
    with pytest.raises(UserError, match=r"x\.safetensors"):
        safetensors_io.read_safetensors(data, "x.safetensors")


def test_header_longer_than_the_file_is_refused():
    with pytest.raises(UserError, match=r"^x declares a header of 20 bytes; at most 3 fit$"):
        safetensors_io.read_safetensors((20).to_bytes(8, "little") + b"abc", "x")
