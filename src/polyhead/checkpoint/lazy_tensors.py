"""Tensors of safetensors files, each read when it is looked up, whole or joined from parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.checkpoint.safetensors_io import MAX_HEADER_BYTES, SAFETENSORS_DTYPES, TensorSpec
from polyhead.core.atomic_io import open_regular_file
from polyhead.core.errors import UserError

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


class LazyTensors(Mapping[str, Tensor]):
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
        whole = torch.empty(spec.shape, dtype=spec.dtype)
        for part in parts:
            whole[tuple(map(slice, part.offsets, part.end))] = part.read()
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


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
