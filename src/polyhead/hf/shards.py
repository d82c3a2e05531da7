"""The weights of a checkpoint in files of a bounded size, with an index where they are several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polyhead.errors import UserError
from polyhead.hf.files import WEIGHTS

UNITS = {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def bytes_of(text: str) -> int:
    """The bytes that a size such as 2GB or 500MiB says."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", text.strip(), re.IGNORECASE)
    units = {unit.upper(): factor for unit, factor in UNITS.items()}
    size = int(float(found[1]) * units[found[2].upper()]) if found else 0
    if size < 1:
        raise UserError(
            f"the size {text!r} is not a number above 0 with one of the units {', '.join(UNITS)}: write 2GB"
        )
    return size


def shards(tensors: Mapping[str, Tensor], most: int) -> dict[str, dict[str, Tensor]]:
    """File -> its tensors, in their order. No file has more than ``most`` bytes of them, but for a single tensor that has."""
    parts: list[dict[str, Tensor]] = [{}]
    room = most
    for name, tensor in tensors.items():
        if tensor.nbytes > room and parts[-1]:
            parts.append({})
            room = most
        parts[-1][name] = tensor
        room -= tensor.nbytes
    if len(parts) == 1:
        return {WEIGHTS: parts[0]}
    return {f"model-{i:05}-of-{len(parts):05}.safetensors": part for i, part in enumerate(parts, 1)}


def index_of(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """What the index says: which file has which tensor, and their bytes in all."""
    found = {name: (file, tensor) for file, part in parts.items() for name, tensor in part.items()}
    return {
        "metadata": {"total_size": sum(tensor.nbytes for _, tensor in found.values())},
        "weight_map": {name: file for name, (file, _) in sorted(found.items())},
    }
