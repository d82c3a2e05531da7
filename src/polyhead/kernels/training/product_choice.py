"""Which library multiplies matrices of a shape fastest: measured once per processor.

The choice is kept in the user's cache directory, a file per shape, so that a run, its resume and its ranks on
a machine round in the same way. Where nothing can be kept, it holds for the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from polyhead.kernels.build_extension import processor_name, user_cache_dir

Product = Callable[..., Any]
_ROUNDS = 5  # timed calls of each candidate
_MIN_GAIN = 0.97  # of the time of the first candidate
_MIN_MULTIPLICATIONS = 2**20  # below, a choice costs more than it gains

_choices: dict[tuple[Any, ...], str] = {}


def fastest_product(
    kind: str, candidates: Mapping[str, Product], sizes: tuple[int, ...], *inputs: Any
) -> Product:
    """The fastest of the candidates, which all compute ``kind``, a product of matrices, from the inputs.

    ``sizes`` are its rows, the length of its sums and its columns. It is the first candidate if the product
    is small. Sizes within a power of two share a choice: batches differ in their length.
    """
    if math.prod(sizes) < _MIN_MULTIPLICATIONS:
        return next(iter(candidates.values()))
    shape = kind, *((size - 1).bit_length() for size in sizes), torch.get_num_threads()
    if shape not in _choices:
        path = _choice_path("-".join(map(str, shape)))
        if _read_choice(path) not in candidates:
            _keep_choice(path, _measure(candidates, inputs))
        kept = _read_choice(path)  # that of the process that was first
        _choices[shape] = kept if kept is not None and kept in candidates else _measure(candidates, inputs)
    return candidates[_choices[shape]]


def _measure(candidates: Mapping[str, Product], inputs: tuple[Any, ...]) -> str:
    """The name of the candidate with the shortest call, in turns after a call of each.

    The first one wins if the gain could be noise.
    """
    for product in candidates.values():
        product(*inputs)
    shortest = dict.fromkeys(candidates, float("inf"))
    for _ in range(_ROUNDS):
        for name, product in candidates.items():
            start = time.perf_counter()
            product(*inputs)
            shortest[name] = min(shortest[name], time.perf_counter() - start)
    first, fastest = next(iter(candidates)), min(shortest, key=lambda name: shortest[name])
    return fastest if shortest[fastest] < _MIN_GAIN * shortest[first] else first


@cache
def _folder() -> Path | None:
    """The directory of the choices of this processor and version of torch; None without a home."""
    key = "\n".join([*processor_name(), torch.__version__])
    try:
        return user_cache_dir() / f"products-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    except RuntimeError:
        return None


def _choice_path(name: str) -> Path | None:
    folder = _folder()
    return None if folder is None else folder / name


def _read_choice(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _keep_choice(path: Path | None, choice: str) -> None:
    """Write a choice, unless another process was first or nothing can be written."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8") as file:
            file.write(choice)
            file.flush()
            os.link(file.name, path)
