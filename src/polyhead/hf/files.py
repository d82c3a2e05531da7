"""The files of a checkpoint directory. Only JSON and safetensors are opened, and only inside the directory."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyhead.errors import UserError

MAX_CONFIG, MAX_INDEX = 1 << 20, 64 << 20  # bytes
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")


class Entry(NamedTuple):
    """A tensor of a file that was not read yet."""

    name: str  # in the file
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: F32
    file: Any

    def tensor(self) -> Tensor:
        """The tensor itself."""
        tensor: Tensor = self.file.get_tensor(self.name)
        return tensor


def inside(directory: Path, name: str) -> Path | None:
    """The plain file of that name, or None. A link may lead to the directory itself or to the blobs of a hub's cache."""
    path = directory / name
    if not os.path.lexists(path):
        return None
    try:
        real, places = path.resolve(strict=True), [directory.resolve()]
    except (OSError, RuntimeError):
        raise UserError(f"{path} is a link that leads nowhere") from None
    if directory.resolve().parent.name == "snapshots":
        places.append(directory.resolve().parent.parent / "blobs")
    if not any(real.is_relative_to(place) for place in places):
        raise UserError(f"{path} is a link out of the checkpoint; it is not followed")
    if not real.is_file():
        raise UserError(f"{path} is not a plain file")
    return real


def read_json(directory: Path, name: str, most: int = MAX_CONFIG) -> dict[str, Any] | None:
    """The object in a file, or None where there is no such file."""
    value = read_value(directory, name, most)
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{directory / name} must hold an object")
    return value


def read_value(directory: Path, name: str, most: int = MAX_CONFIG) -> Any:
    """What a file of JSON holds, or None where there is no such file."""
    path = inside(directory, name)
    if path is None:
        return None
    if (size := path.stat().st_size) > most:
        raise UserError(f"{directory / name} has {size:,} bytes; at most {most:,} are read")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{directory / name} is not valid JSON: {error}") from None


def entries(directory: Path, weights: str = WEIGHTS) -> dict[str, Entry]:
    """All tensors of a checkpoint by name, in one file or in those that its index names."""
    if inside(directory, weights) is not None:
        return _opened(directory, weights)
    index = read_json(directory, INDEX, MAX_INDEX) if weights == WEIGHTS else None
    if index is None:
        raise UserError(_no_weights(directory, weights))
    shards = index.get("weight_map")
    if (
        not isinstance(shards, dict)
        or not shards
        or not all(isinstance(name, str) for name in shards.values())
    ):
        raise UserError(f"{directory / INDEX} has no weight_map of names and files")
    for shard in shards.values():
        if not SHARD.fullmatch(shard):
            raise UserError(f"{directory / INDEX} names {shard!r}, which is not a file of this directory")
    opened = {shard: _opened(directory, shard) for shard in sorted(set(shards.values()))}
    found: dict[str, Entry] = {}
    for shard, held in opened.items():
        for name, entry in held.items():
            if shards.get(name) != shard:
                raise UserError(f"{directory / shard} holds {name!r}, which the index does not say")
            found[name] = entry
    if absent := sorted(shards.keys() - found.keys()):
        raise UserError(
            f"{directory / INDEX} names {absent[0]!r} in {shards[absent[0]]}, which does not hold it"
        )
    return found


def _opened(directory: Path, name: str) -> dict[str, Entry]:
    path = inside(directory, name)
    if path is None:
        raise UserError(f"{directory / name} is missing, though {INDEX} names it")
    try:
        file = safe_open(path, "pt")
        slices = {tensor: file.get_slice(tensor) for tensor in file.keys()}  # noqa: SIM118
        return {key: Entry(key, tuple(s.get_shape()), s.get_dtype(), file) for key, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{directory / name} is damaged or cut short: {error}") from None


def _no_weights(directory: Path, weights: str) -> str:
    ends = (".bin", ".pt", ".pth", ".ckpt")
    place = (directory / weights).parent
    pickled = [path for path in sorted(place.glob("*")) if path.suffix in ends]
    if not pickled:
        return f"{directory} has no {weights}" + (f" and no {INDEX}" if weights == WEIGHTS else "")
    return (
        f"{directory} has no {weights}, only {pickled[0].name}: a pickle can run code when it is read, so it never is. "
        "Take the checkpoint's safetensors files, or save it again with save_pretrained"
    )
