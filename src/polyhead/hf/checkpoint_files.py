"""Files of a checkpoint directory. Only JSON and safetensors inside the directory are opened."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json
from polyhead.nn.state import check_weight

MAX_CONFIG_BYTES, MAX_INDEX_BYTES = 1 << 20, 64 << 20  # bytes
READABLE_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors")


class TensorEntry(NamedTuple):
    """A tensor of a safetensors file, loaded on demand."""

    name: str  # name in the file
    shape: tuple[int, ...]
    dtype: str  # safetensors spelling, such as F32
    file: Any
    path: Path

    def load(self) -> Tensor:
        """Read the tensor; a UserError if it has NaN or an infinite value."""
        return check_weight(self.name, self.file.get_tensor(self.name), self.path)


class CheckpointFiles:
    """Files of one directory, each looked up and parsed at most once. Parsed values must not be modified."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._paths: dict[str, Path | None] = {}
        self._json_values: dict[str, Any] = {}

    def find(self, name: str, max_bytes: float = math.inf) -> Path | None:
        """Return the regular file of that name, or None. A larger file than ``max_bytes`` is a UserError.

        A link may point into the directory or to the blobs of the hub's cache.
        """
        if name not in self._paths:
            self._paths[name] = _find_file(self.directory, name)
        path = self._paths[name]
        if path and (size := path.stat().st_size) > max_bytes:
            raise UserError(f"{self.directory / name} has {size:,} bytes; the maximum is {max_bytes:,}")
        return path

    def read_json(self, name: str, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any] | None:
        """Return the object in a JSON file, or None if there is no such file."""
        value = self.read_json_value(name, max_bytes)
        if value is not None and not isinstance(value, dict):
            raise UserError(f"{self.directory / name} must be a JSON object")
        return value

    def read_json_value(self, name: str, max_bytes: int = MAX_CONFIG_BYTES) -> Any:
        """Return the value in a JSON file, or None if there is no such file."""
        if name not in self._json_values:
            path = self.find(name, max_bytes)
            self._json_values[name] = path and decode_json(path.read_bytes(), self.directory / name)
        return self._json_values[name]

    def open_tensors(self, weights_file: str = WEIGHTS_FILE) -> dict[str, TensorEntry]:
        """Return all tensors of a checkpoint by name, from one file or from the shards in its index."""
        if self.find(weights_file) is not None:
            return self._open_shard(weights_file)
        index = self.read_json(INDEX_FILE, MAX_INDEX_BYTES) if weights_file == WEIGHTS_FILE else None
        if index is None:
            raise UserError(_missing_weights_message(self.directory, weights_file))
        index_path, shards = self.directory / INDEX_FILE, index.get("weight_map")
        if (
            not isinstance(shards, dict)
            or not shards
            or not all(isinstance(name, str) for name in shards.values())
        ):
            raise UserError(f"{index_path} has no weight_map from names to files")
        for shard in shards.values():
            if not _SHARD_NAME.fullmatch(shard):
                raise UserError(f"{index_path} names {shard!r}, which is not a file of this directory")
        opened = {shard: self._open_shard(shard) for shard in sorted(set(shards.values()))}
        entries: dict[str, TensorEntry] = {}
        for shard, shard_entries in opened.items():
            for name, entry in shard_entries.items():
                if shards.get(name) != shard:
                    raise UserError(f"{self.directory / shard} holds {name!r}, which is not in the index")
                entries[name] = entry
        if absent := sorted(shards.keys() - entries.keys()):
            raise UserError(
                f"{index_path} names {absent[0]!r} in {shards[absent[0]]}, which does not have it"
            )
        return entries

    def _open_shard(self, name: str) -> dict[str, TensorEntry]:
        path = self.find(name)
        if path is None:
            raise UserError(f"{self.directory / name} is missing, but {INDEX_FILE} lists it")
        try:
            file = safe_open(path, "pt")
            slices = {tensor: file.get_slice(tensor) for tensor in file.keys()}  # noqa: SIM118
            return {
                key: TensorEntry(key, tuple(s.get_shape()), s.get_dtype(), file, self.directory / name)
                for key, s in slices.items()
            }
        except (SafetensorError, OSError) as error:
            raise UserError(f"{self.directory / name} is damaged or truncated: {error}") from None


def _find_file(directory: Path, name: str) -> Path | None:
    path = directory / name
    if not os.path.lexists(path):
        return None
    try:
        real, allowed_dirs = path.resolve(strict=True), [directory.resolve()]
    except (OSError, RuntimeError):
        raise UserError(f"{path} is a broken link") from None
    if directory.resolve().parent.name == "snapshots":
        allowed_dirs.append(directory.resolve().parent.parent / "blobs")
    if not any(real.is_relative_to(allowed_dir) for allowed_dir in allowed_dirs):
        raise UserError(f"{path} leads to a file outside the checkpoint; it is not followed")
    if not real.is_file():
        raise UserError(f"{path} is not a regular file")
    return real


def _missing_weights_message(directory: Path, weights_file: str) -> str:
    ends = (".bin", ".pt", ".pth", ".ckpt")
    folder = (directory / weights_file).parent
    pickled = [path for path in sorted(folder.glob("*")) if path.suffix in ends]
    if not pickled:
        return f"{directory} has no {weights_file}" + (
            f" and no {INDEX_FILE}" if weights_file == WEIGHTS_FILE else ""
        )
    return (
        f"{directory} has no {weights_file}, only {pickled[0].name}: pickle files can run code and are "
        "never loaded. Use the checkpoint's safetensors files, or save it again with save_pretrained"
    )
