"""Write tensors to a safetensors file one at a time; read them from verified bytes, or when they are used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import Tensor

from polyhead.core.atomic_io import HashingWriter, open_regular_file
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


class DescribedTensors(Mapping[str, Tensor]):
    """Tensors that are described without reading them; each is read when it is looked up."""

    specs: Mapping[str, TensorSpec]

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


def describe_tensors(tensors: Mapping[str, Tensor]) -> Mapping[str, TensorSpec]:
    """The specs of tensors; of one that is sharded over processes, the spec of the full tensor."""
    if isinstance(tensors, DescribedTensors):
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
    text += b" " * (-(len(text) + 8) % 64)  # aligns the data to a cache line
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


_DTYPES = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items()}
# key of the metadata in which torch.distributed.checkpoint has the offset of each part in its tensor
_SHARDING_KEY = "DCP_SHARDING_INFO"


class _Part(NamedTuple):
    """A rectangle of a tensor, and where its data are."""

    path: Path
    position: int  # in the file, in bytes
    spec: TensorSpec
    offsets: tuple[int, ...]  # in the tensor, by dimension

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(offset + size for offset, size in zip(self.offsets, self.spec.shape, strict=True))

    def read(self) -> Tensor:
        data = bytearray(self.spec.nbytes)
        with open_regular_file(self.path) as file:
            file.seek(self.position)
            if file.readinto(data) != len(data):
                raise UserError(f"{self.path} is not a safetensors file: it ends within a tensor")
        if not data:
            return torch.empty(self.spec.shape, dtype=self.spec.dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(self.spec.dtype).reshape(self.spec.shape)


class LazyTensors(DescribedTensors):
    """The tensors of safetensors files, each read when it is looked up, on the CPU.

    A tensor may be in parts in several files, as torch's ``HuggingFaceStorageWriter`` writes them.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._parts: dict[str, list[_Part]] = {}
        aliases: dict[str, str] = {}
        for path in paths:
            try:
                self._add_file(path, aliases)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                if isinstance(error, UserError):
                    raise
                raise UserError(f"{path} is not a safetensors file: {error}") from error
        for name, first_name in aliases.items():
            if first_name in self._parts:
                self._parts[name] = self._parts[first_name]
        self.specs = {name: _join_specs(name, parts) for name, parts in self._parts.items()}

    def _add_file(self, path: Path, aliases: dict[str, str]) -> None:
        header, data_start = _read_header(path)
        metadata = header.pop("__metadata__", {})
        all_offsets = json.loads(metadata.pop(_SHARDING_KEY, "{}"))
        aliases.update(metadata)
        for name, entry in header.items():
            spec = TensorSpec(_DTYPES[entry["dtype"]], tuple(entry["shape"]))
            start, end = entry["data_offsets"]
            if end - start != spec.nbytes:
                raise UserError(f"{path} is not a safetensors file: {name!r} has {end - start} bytes")
            offsets = all_offsets[name]["saved_offsets"] if all_offsets else [0] * len(spec.shape)
            self._parts.setdefault(name, []).append(_Part(path, data_start + start, spec, tuple(offsets)))

    def __getitem__(self, name: str) -> Tensor:
        spec, parts = self.specs[name], self._parts[name]
        if parts[0].spec == spec:
            return parts[0].read()
        full = torch.empty(spec.shape, dtype=spec.dtype)
        for part in parts:
            full[tuple(map(slice, part.offsets, part.end))] = part.read()
        return full


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and the position of its data."""
    with open_regular_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise UserError(
                f"{path} declares a header of {length} bytes; at most {MAX_HEADER_BYTES} can be read"
            )
        return json.loads(file.read(length)), 8 + length


def _join_specs(name: str, parts: list[_Part]) -> TensorSpec:
    """The spec of the tensor that the parts make up."""
    shape = tuple(map(max, *(part.end for part in parts))) if len(parts) > 1 else parts[0].end
    if {part.spec.dtype for part in parts} != {parts[0].spec.dtype} or prod(shape) != sum(
        prod(part.spec.shape) for part in parts
    ):
        raise UserError(f"{parts[0].path.parent} does not have all parts of {name!r}")
    return TensorSpec(parts[0].spec.dtype, shape)
