"""The limits of this processor, measured: operations and bytes a second."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from polyhead.kernels.build_extension import COMPILER_FLAGS
from polyhead.kernels.cpu_features import cpu_info
from polyhead.train.precision import resolve_precision

_REPEATS = 5  # the best counts: a limit is what the processor can do when nothing disturbs it
_SECONDS = 0.2  # of a repeat, about
_LARGE = 2048  # width of the largest product of matrices
PRECISIONS = ("fp32", "bf16", "int8")


class Roofline:
    """Operations a second by precision, and bytes a second of reads by size, of some threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        torch.set_num_threads(threads)
        self._library = _compile_loops(threads)
        self.in_registers = {
            precision: _best_rate(getattr(self._library, f"{precision}_products"), 10**6)
            if self._library
            else 0.0
            for precision in PRECISIONS
        }
        self.in_matrices = {
            "fp32": _matrix_rate(torch.float32),
            # without an instruction oneDNN computes them in fp32, slower than other products
            "bf16": _matrix_rate(torch.bfloat16) if self.in_registers["bf16"] else 0.0,
            "int8": 0.0,
        }
        self._buffer = torch.zeros(2**28, dtype=torch.float32)

    def peak(self, precision: str) -> float:
        """Operations a second: the better of products in registers and of large matrices.

        A precision without products of its own is computed in fp32.
        """
        rate = max(self.in_registers[precision], self.in_matrices[precision])
        return rate or self.peak("fp32")

    def bandwidth(self, nbytes: int) -> float:
        """Bytes a second at which ``nbytes`` are read again and again, from caches if they fit."""
        nbytes = min(nbytes, self._buffer.nbytes)
        if self._library is None:
            part = self._buffer[: nbytes // 4]
            return _best_rate(lambda rounds: sum(nbytes + 0 * int(part.sum() > 0) for _ in range(rounds)), 1)
        read = self._library.read_memory
        return _best_rate(lambda rounds: int(read(self._buffer.data_ptr(), nbytes, rounds)), 1)

    def describe(self) -> str:
        """The processor and its limits, as lines of text."""
        name = cpu_info().get("model name", "unknown processor")
        rates = ", ".join(
            f"{precision} {self.in_registers[precision] / 1e9:,.0f}"
            + (f" ({self.in_matrices[precision] / 1e9:,.0f})" if self.in_matrices[precision] else "")
            for precision in PRECISIONS
        )
        reads = ", ".join(
            f"{self.bandwidth(size << 20) / 1e9:,.0f} of {size:,} MiB" for size in (16, 64, 1024)
        )
        return (
            f"{name}, {self.threads} threads, torch {torch.__version__}; train.precision: auto is "
            f"{resolve_precision('auto', torch.device('cpu'))}.\n"
            f"Billion operations a second in registers (in products of matrices): {rates}.\n"
            f"GB/s of repeated reads: {reads}."
        )


def _compile_loops(threads: int) -> ctypes.CDLL | None:
    """roofline.cpp as a library; None without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    source = Path(__file__).with_name("roofline.cpp")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "roofline.so"
        subprocess.run([compiler, *COMPILER_FLAGS, "-o", built, source], check=True)
        library = ctypes.CDLL(str(built))
    for precision in PRECISIONS:
        loop = getattr(library, f"{precision}_products")
        loop.argtypes, loop.restype = [ctypes.c_int64], ctypes.c_int64
    library.read_memory.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.read_memory.restype = ctypes.c_int64
    library.set_threads(threads)
    return library


def _best_rate(run: Callable[[int], int], rounds: int) -> float:
    """Work a second of ``run``, which takes a number of rounds and returns its work."""
    start = time.perf_counter()
    run(rounds)
    rounds = max(1, int(rounds * _SECONDS / max(time.perf_counter() - start, 1e-6)))
    rates = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work = run(rounds)
        rates.append(work / (time.perf_counter() - start))
    return max(rates)


def _matrix_rate(dtype: torch.dtype) -> float:
    """Operations a second of the best product of large matrices: of MKL, or of oneDNN."""
    x, w = (torch.ones(_LARGE, _LARGE, dtype=dtype) for _ in range(2))

    def with_default() -> object:
        return F.linear(x, w)

    def with_onednn() -> object:
        return torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")

    def repeat(product: Callable[[], object], rounds: int) -> int:
        for _ in range(rounds):
            product()
        return rounds * 2 * _LARGE**3

    products = [with_default, *([with_onednn] if torch.backends.mkldnn.is_available() else [])]
    with torch.inference_mode():
        return max(_best_rate(lambda rounds, p=product: repeat(p, rounds), 1) for product in products)
