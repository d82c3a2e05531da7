"""The kernels of kernels/, compiled on this machine for its processor when they are first wanted.

Where there is no compiler, or it refuses, there are none, and torch's own operations do the work.
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

from polyhead.fast.processor import flags, processor
from polyhead.files import sync

SOURCES = Path(__file__).with_name("kernels")
FLAGS = [
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
SECONDS = 120  # that compiling may take; it takes 3
POINTER, WHOLE = ctypes.c_void_p, ctypes.c_int64
SUFFIX = {torch.float32: "fp32", torch.bfloat16: "bf16"}


WHOLES = """
rows share heads group queries slots block pages dim v_dim q_token k_head k_page k_slot v_head v_page v_slot seen_row seen_head seen_query
bias_row bias_head bias_query
"""


class Sizes(ctypes.Structure):
    """As in attention.hpp."""

    _fields_ = [
        *((name, WHOLE) for name in WHOLES.split()),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
    ]


@cache
def kernels() -> ctypes.CDLL | None:
    """The compiled kernels, from the user's cache directory if they are there; None where they cannot be had."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    sources = [source.read_text(encoding="utf-8") for source in sorted(SOURCES.glob("*.[ch]pp"))]
    known = processor()
    able = [known.get("model name") or platform.processor(), known.get("CPU part", ""), *flags()]
    made_of = "\n".join([*sources, *FLAGS, compiler, *able])
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyhead"
        library = home / f"kernels-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
        if not library.exists():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=home) as folder:  # another process may be at the same
                made = Path(folder) / library.name
                subprocess.run(
                    [compiler, *FLAGS, "-o", made, SOURCES / "kernels.cpp"],
                    check=True,
                    capture_output=True,
                    timeout=SECONDS,
                )
                sync(made)  # a library that is not whole would be refused ever after
                made.replace(library)
        found = ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    found.pack.argtypes = [POINTER, POINTER, WHOLE, WHOLE]
    found.pack_int4.argtypes = [POINTER, POINTER, POINTER, WHOLE, WHOLE]
    found.log_sums.argtypes = [POINTER, POINTER, WHOLE, WHOLE]
    found.best_of.argtypes = [POINTER, *[WHOLE] * 3, POINTER, WHOLE, POINTER, POINTER]
    found.step_of.argtypes = [POINTER, WHOLE, POINTER, POINTER]
    for suffix in SUFFIX.values():
        getattr(found, f"linear_{suffix}").argtypes = [*[POINTER] * 4, *[WHOLE] * 3]
        for whole in ("int8", "int4"):
            getattr(found, f"linear_{whole}_{suffix}").argtypes = [*[POINTER] * 6, *[WHOLE] * 3]
        getattr(found, f"attend_{suffix}").argtypes = [*[POINTER] * 7, ctypes.POINTER(Sizes)]
    return found
