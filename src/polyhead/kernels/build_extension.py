"""Compile and load the C++ kernels of kernels/cpp for this machine's CPU, on first use.

Without a compiler, or if it fails, there are no kernels, and torch's operations are used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from polyhead.core.atomic_io import fsync_path
from polyhead.kernels.cpu_features import cpu_flags, cpu_info

SOURCE_DIR = Path(__file__).with_name("cpp")
COMPILER_FLAGS = [
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-Wno-psabi",
]
_COMPILE_TIMEOUT = 120  # seconds; compiling takes 10 to 30
POINTER, INT64 = ctypes.c_void_p, ctypes.c_int64
DTYPE_SUFFIX = {torch.float32: "fp32", torch.bfloat16: "bf16"}


_INT_FIELDS = """
rows share heads group queries slots block pages dim v_dim q_token k_head k_page k_slot v_head v_page v_slot seen_row seen_head seen_query
bias_row bias_head bias_query
"""  # noqa: E501


class AttentionSizes(ctypes.Structure):
    """The struct of the same layout in attention.hpp."""

    _fields_ = [
        *((name, INT64) for name in _INT_FIELDS.split()),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
    ]


def user_cache_dir() -> Path:
    """The user's cache directory of this package, which may not exist; a RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyhead"


def processor_name() -> list[str]:
    """What tells this machine's processor from others: its model and its instruction sets."""
    cpu = cpu_info()
    return [cpu.get("model name") or platform.processor(), cpu.get("CPU part", ""), *cpu_flags()]


@cache
def load_kernels() -> ctypes.CDLL | None:
    """The compiled kernels, from the user's cache directory if present; None if they cannot be built."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    sources = [source.read_text(encoding="utf-8") for source in sorted(SOURCE_DIR.glob("*.[ch]pp"))]
    build_key = "\n".join([*sources, *COMPILER_FLAGS, compiler, *processor_name()])
    try:
        home = user_cache_dir()
        library = home / f"kernels-{hashlib.sha256(build_key.encode()).hexdigest()[:16]}.so"
        if not library.exists():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # another process may compile at the same time
            with tempfile.TemporaryDirectory(dir=home) as folder:
                built = Path(folder) / library.name
                subprocess.run(
                    [compiler, *COMPILER_FLAGS, "-o", built, SOURCE_DIR / "kernels.cpp"],
                    check=True,
                    capture_output=True,
                    timeout=_COMPILE_TIMEOUT,
                )
                fsync_path(built)  # an incomplete library would fail to load ever after
                built.replace(library)
        kernels = ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    kernels.limit_threads.argtypes = [INT64]
    kernels.pack.argtypes = [POINTER, POINTER, INT64, INT64]
    kernels.pack_int4.argtypes = [POINTER, POINTER, POINTER, INT64, INT64]
    kernels.log_sums.argtypes = [POINTER, POINTER, INT64, INT64]
    for name in ("best_of", "best_log_probs"):
        getattr(kernels, name).argtypes = [POINTER, *[INT64] * 3, POINTER, INT64, POINTER, POINTER]
    kernels.step_of.argtypes = [POINTER, INT64, POINTER, POINTER]
    for suffix in DTYPE_SUFFIX.values():
        getattr(kernels, f"linear_{suffix}").argtypes = [*[POINTER] * 4, *[INT64] * 3]
        for int_dtype in ("int8", "int4"):
            getattr(kernels, f"linear_{int_dtype}_{suffix}").argtypes = [*[POINTER] * 6, *[INT64] * 3]
        getattr(kernels, f"attend_{suffix}").argtypes = [*[POINTER] * 7, ctypes.POINTER(AttentionSizes)]
    return kernels
