"""Compile and load the C++ kernels of kernels/cpp for this machine's CPU, on first use.

Without a compiler, or if it fails, there are no kernels, and torch's operations are used; the reason is on
stderr and in ``polyhead env``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from polyhead.core.i18n import tr, translate_message
from polyhead.kernels.compile_library import CompileError, compile_library, has_library, make_cache_dir
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
POINTER, INT64 = ctypes.c_void_p, ctypes.c_int64
DTYPE_SUFFIX = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_load_lock = threading.Lock()

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


def processor_name() -> list[str]:
    """What tells this machine's processor from others: its model and its instruction sets."""
    cpu = cpu_info()
    return [cpu.get("model name") or platform.processor(), cpu.get("CPU part", ""), *cpu_flags()]


class KernelsStatus(NamedTuple):
    """The kernels of this process, or the reason why they are not used."""

    kernels: ctypes.CDLL | None
    path: Path | None = None
    reason: str = ""


class _SkippedKernels:
    """Kernels that compute nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


SKIPPED_KERNELS = cast(ctypes.CDLL, _SkippedKernels())
_is_skipping = ContextVar("is_skipping", default=False)


@contextmanager
def skip_kernels() -> Iterator[None]:
    """Context in which kernels compute nothing: what they read and write are tensors without memory."""
    token = _is_skipping.set(True)
    try:
        yield
    finally:
        _is_skipping.reset(token)


def load_kernels() -> ctypes.CDLL | None:
    """The compiled kernels, from the user's cache directory if present; None if they cannot be built."""
    return SKIPPED_KERNELS if _is_skipping.get() else kernels_status().kernels


@cache
def kernels_status() -> KernelsStatus:
    """Compile the kernels if they are not, and load them. A failure is reported on stderr, once."""
    with _load_lock:
        return _load_once()


@cache
def _load_once() -> KernelsStatus:
    status = _load(is_compiling=True)
    if status.reason and os.environ.get("LOCAL_RANK", "0") == "0":
        reason = tr("kernels are not used: {reason}", reason=translate_message(status.reason))
        print(f"polyhead: {reason}", file=sys.stderr, flush=True)
    return status


def inspect_kernels() -> KernelsStatus:
    """The status that ``load_kernels`` would lead to, without compiling."""
    return _load(is_compiling=False)


def sources_digest() -> str:
    """SHA-256 of the sources of the kernels, which decide the layout of packed weights."""
    return hashlib.sha256("\n".join(_read_sources()).encode()).hexdigest()


def _read_sources() -> list[str]:
    return [source.read_text(encoding="utf-8") for source in sorted(SOURCE_DIR.glob("*.[ch]pp"))]


def _load(is_compiling: bool) -> KernelsStatus:
    compiler = shutil.which("g++")
    if compiler is None:
        return KernelsStatus(None, reason="no compiler (g++) is installed")
    try:
        identity = os.stat(compiler)  # another version has another size and time
        compiler_key = [os.path.realpath(compiler), str(identity.st_size), str(identity.st_mtime_ns)]
        build_key = "\n".join([*_read_sources(), *COMPILER_FLAGS, *compiler_key, *processor_name()])
        library = make_cache_dir() / f"kernels-{hashlib.sha256(build_key.encode()).hexdigest()[:16]}.so"
        if is_compiling:
            compile_library(library, [compiler, *COMPILER_FLAGS, "kernels.cpp"], SOURCE_DIR)
        elif not has_library(library):
            return KernelsStatus(None, reason="not compiled yet; the first use compiles them")
        return KernelsStatus(_declare_arguments(ctypes.CDLL(str(library))), library)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return KernelsStatus(None, reason=reason)
    except (RuntimeError, CompileError) as error:
        return KernelsStatus(None, reason=str(error))


def _declare_arguments(kernels: ctypes.CDLL) -> ctypes.CDLL:
    kernels.limit_threads.argtypes = [INT64]
    kernels.pack.argtypes = [POINTER, POINTER, INT64, INT64]
    kernels.pack_int4.argtypes = [POINTER, POINTER, POINTER, INT64, INT64]
    kernels.quantize_rows.argtypes = [POINTER, INT64, INT64, *[POINTER] * 3]
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
