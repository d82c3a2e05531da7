"""Split the weights of a checkpoint into shards of limited size, with an index if there are several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import WEIGHTS_FILE

SIZE_UNITS = {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_size(text: str) -> int:
    """Parse a size such as 2GB or 500MiB into bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", text.strip(), re.IGNORECASE)
    units = {unit.upper(): factor for unit, factor in SIZE_UNITS.items()}
    size = int(float(match[1]) * units[match[2].upper()]) if match else 0
    if size < 1:
        raise UserError(
            f"the size {text!r} is not a number above 0 with a unit, one of "
            f"{', '.join(SIZE_UNITS)}: write 2GB"
        )
    return size


def split_shards(tensors: Mapping[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Return file -> its tensors, in their order.

    A file holds at most ``max_bytes`` bytes of tensors, unless a single tensor is larger.
    """
    parts: list[dict[str, Tensor]] = [{}]
    room = max_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and parts[-1]:
            parts.append({})
            room = max_bytes
        parts[-1][name] = tensor
        room -= tensor.nbytes
    if len(parts) == 1:
        return {WEIGHTS_FILE: parts[0]}
    return {f"model-{i:05}-of-{len(parts):05}.safetensors": part for i, part in enumerate(parts, 1)}


def build_index(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return the index: the file of each tensor and the total size in bytes."""
    entries = {name: (file, tensor) for file, part in files.items() for name, tensor in part.items()}
    return {
        "metadata": {"total_size": sum(tensor.nbytes for _, tensor in entries.values())},
        "weight_map": {name: file for name, (file, _) in sorted(entries.items())},
    }
