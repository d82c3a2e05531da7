"""Products of matrices in training, each by the library that is fastest for its shape.

torch multiplies fp32 in MKL and bf16 in oneDNN; a direct call of oneDNN can be faster in both, which depends
on the processor and the shape, and is measured once per processor. The choice is kept in the user's cache
directory, a file per shape, so that a run, its resume and its ranks on a machine round in the same way. Where
nothing can be kept, it holds for the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX, SKIPPED_KERNELS, load_kernels, processor_name
from polyhead.kernels.compile_library import lock_directory, make_cache_dir, read_private, write_private

Product = Callable[..., Any]
_ROUNDS = 5  # timed calls of each candidate
_MIN_GAIN = 0.97  # of the time of the first candidate
_MAX_BYTES = 100  # of a file with the name of a candidate
_MIN_MULTIPLICATIONS = 2**20  # below, a choice costs more than it gains

_choices: dict[tuple[Any, ...], str] = {}


def multiply(kind: str, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a b + bias: (R, K), (K, N), (N,) -> (R, N), by the candidate that is fastest for the kind.

    Kinds are the product of a linear map, "linear", and the gradients of its "input" and "weight".
    """
    candidates, inputs = (_PRODUCTS, (a, b)) if bias is None else (_BIASED_PRODUCTS, (bias, a, b))
    product = candidates["torch"]
    if has_onednn(a.dtype):
        kind = f"{kind if bias is None else 'biased'}-{DTYPE_SUFFIX[a.dtype]}"
        product = fastest_product(kind, candidates, (*a.shape, b.size(1)), *inputs)
    out: Tensor = product(*inputs)
    return out


def round_rows(n: int) -> int:
    """The next of 16 numbers of rows in each power of two, for which oneDNN compiles and keeps a kernel.

    Products of padded rows cost 3 % more on average, and a kernel for each number of labels costs more.
    """
    step = 1 << max(0, n.bit_length() - 5)
    return -(-n // step) * step


@cache
def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of the dtype that are no emulation."""
    is_available = torch.backends.mkldnn.is_available()
    return is_available and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _multiply_in_onednn(*inputs: Tensor) -> Tensor:
    *bias, a, b = inputs
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, bias[0] if bias else None, "none", [], "")
    return out


_PRODUCTS: Mapping[str, Product] = {"torch": torch.mm, "onednn": _multiply_in_onednn}
_BIASED_PRODUCTS: Mapping[str, Product] = {"torch": torch.addmm, "onednn": _multiply_in_onednn}


def fastest_product(
    kind: str, candidates: Mapping[str, Product], sizes: tuple[int, ...], *inputs: Any
) -> Product:
    """The fastest of the candidates, which all compute ``kind``, a product of matrices, from the inputs.

    ``sizes`` are its rows, the length of its sums and its columns. It is the first candidate if the product
    is small. Sizes within a power of two share a choice: batches differ in their length.
    """
    if math.prod(sizes) < _MIN_MULTIPLICATIONS or load_kernels() is SKIPPED_KERNELS:
        return next(iter(candidates.values()))
    shape = kind, *((size - 1).bit_length() for size in sizes), torch.get_num_threads()
    if shape not in _choices:
        folder = _folder()
        path = folder and folder / "-".join(map(str, shape))
        choice = _read_choice(path, candidates)
        _choices[shape] = choice or _keep_choice(path, _measure(candidates, inputs), candidates)
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
    """The directory of the choices of this processor and version of torch; None if nothing can be kept."""
    key = "\n".join([*processor_name(), torch.__version__])
    try:
        return make_cache_dir(f"products-{hashlib.sha256(key.encode()).hexdigest()[:16]}")
    except (OSError, RuntimeError):
        return None


def _read_choice(path: Path | None, candidates: Iterable[str]) -> str | None:
    """The choice of a file; None if it is none of the candidates."""
    content = path and read_private(path, max_bytes=_MAX_BYTES)
    return next((name for name in candidates if content == name.encode()), None)


def _keep_choice(path: Path | None, choice: str, candidates: Iterable[str]) -> str:
    """Write a choice, unless another process was first, whose choice is returned."""
    if path is not None:
        with contextlib.suppress(OSError), lock_directory(path.parent):
            if first := _read_choice(path, candidates):
                return first
            write_private(path, choice.encode())
    return choice
