"""Write tensors to a safetensors file one at a time, and read them from verified bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import Tensor

from polyhead.core.atomic_io import HashingWriter
from polyhead.core.errors import UserError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


class TensorSpec(NamedTuple):
    """Dtype and shape of a tensor, which may be somewhere else."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@runtime_checkable
class HasSpecs(Protocol):
    """Tensors that are described without reading them."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]: ...


def describe_tensors(tensors: Mapping[str, Tensor]) -> Mapping[str, TensorSpec]:
    """The specs of tensors; of one that is split over processes, the spec of the whole."""
    if isinstance(tensors, HasSpecs):
        return tensors.specs
    return {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def sort_names(specs: Mapping[str, TensorSpec]) -> list[str]:
    """Names of tensors in the order of their data in a file."""
    return sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))


def format_header(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The header of a file that has these tensors."""
    entries: dict[str, object] = {}
    offset = 0
    for name in sort_names(specs):
        end = offset + specs[name].nbytes
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[specs[name].dtype],
            "shape": list(specs[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(
        ({"__metadata__": metadata} if metadata else {}) | entries, separators=(",", ":")
    ).encode()
    text += b" " * (-len(text) % 8)  # aligns the data
    return len(text).to_bytes(8, "little") + text


def make_header(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[str]]:
    """The file header and the tensor names in the order of their data.

    A tensor that shares its memory with an earlier one (tied embeddings) is written once; the metadata then
    map its name to the earlier one, as in ``safetensors.torch.save_model``.
    """
    specs = describe_tensors(tensors)
    first: dict[object, str] = {}
    aliases: dict[str, str] = {}
    for name in sort_names(specs):
        tensor = tensors[name]
        if tensor.dtype not in SAFETENSORS_DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            raise UserError(
                f"cannot save {name!r}: a {tensor.dtype} {tensor.layout} tensor on {tensor.device}; "
                f"dense tensors with data of {', '.join(map(str, SAFETENSORS_DTYPES))} can be saved"
            )
        storage_key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        first_name = first.setdefault(storage_key, name) if tensor.numel() else name
        if first_name != name:
            aliases[name] = first_name
    written = {name: spec for name, spec in specs.items() if name not in aliases}
    return format_header(written, {**(metadata or {}), **aliases}), sort_names(written)


def count_file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size in bytes of the file that ``write_safetensors`` writes."""
    head, names = make_header(tensors)
    return len(head) + sum(tensors[name].numel() * tensors[name].element_size() for name in names)


def write_safetensors(
    out: HashingWriter, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the tensors as a stream; any device and any strides."""
    head, names = make_header(tensors, metadata)
    out.write(head)
    for name in names:
        _write_data(out, tensors[name])


def write_stream(out: HashingWriter, specs: Mapping[str, TensorSpec], tensors: Iterable[Tensor]) -> None:
    """Write tensors that arrive one at a time, in the order of ``sort_names``, as ``write_safetensors``
    does.
    """
    out.write(format_header(specs))
    names = iter(sort_names(specs))
    for tensor in tensors:
        name = next(names)
        assert (tensor.dtype, tensor.shape) == specs[name], f"not the tensor {name!r}: {tensor.shape}"
        _write_data(out, tensor)
        del tensor  # before the next one is made


def _write_data(out: HashingWriter, tensor: Tensor) -> None:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    out.write(flat.view(torch.uint8).numpy().data)


def read_safetensors(data: bytes, source: object) -> dict[str, Tensor]:
    """Parse the bytes of a safetensors file to tensors on the CPU. ``source`` names the file in errors."""
    try:
        length = int.from_bytes(data[:8], "little")
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise UserError(
                f"{source} declares a header of {length} bytes; at most "
                f"{min(MAX_HEADER_BYTES, len(data) - 8)} fit"
            )
        aliases = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        tensors: dict[str, Tensor] = parse(data)
        return tensors | {name: tensors[target] for name, target in aliases.items() if target in tensors}
    except UserError:
        raise
    except (SafetensorError, ValueError, TypeError, RecursionError, AttributeError) as error:
        raise UserError(f"{source} is not a safetensors file: {error}") from error


def check_tensors(
    tensors: Mapping[str, Tensor | TensorSpec], expected: Mapping[str, Tensor | TensorSpec], source: object
) -> None:
    """Raise a UserError for tensors that differ from the expected ones in name, shape or dtype."""
    problems = [f"{name!r} is missing" for name in sorted(expected.keys() - tensors.keys())]
    problems += [f"{name!r} is unexpected" for name in sorted(tensors.keys() - expected.keys())]
    for name in sorted(tensors.keys() & expected.keys()):
        actual, reference = tensors[name], expected[name]
        if (actual.shape, actual.dtype) != (reference.shape, reference.dtype):
            problems.append(
                f"{name!r} is {actual.dtype} {list(actual.shape)}, expected {reference.dtype} "
                f"{list(reference.shape)}"
            )
    if problems:
        remainder = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(f"{source} does not match: {'; '.join(problems[:5])}{remainder}")
