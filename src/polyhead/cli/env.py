"""``polyhead env``: what a report of a defect should say about the machine. No host name, no path."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import shutil
from collections.abc import Sequence

import polyhead
from polyhead.core.extras import EXTRAS

LIBRARIES = ("torch", "numpy", "safetensors", "tokenizers", "pydantic", "typer", "sacrebleu", "pyyaml")
CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")


def run() -> None:
    """Describe this installation, for bug reports."""
    for name, value in report().items():
        print(f"{name:<12} {value}")


def report() -> dict[str, str]:
    """Versions, processor, threads and extras, in the order they are printed."""
    import torch

    from polyhead.fast.memory import machine_memory
    from polyhead.fast.processor import flags

    memory = machine_memory()
    known = [flag for flag in CPU_FLAGS if flag in flags()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "polyhead": polyhead.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{torch.backends.cpu.get_cpu_capability()}; {' '.join(known) or 'flags unknown'}",
        "memory": f"{memory / 2**30:.0f} GiB" if memory else "unknown",
        "threads": f"{torch.get_num_threads()} used by torch, {cores} cores to run on"
        + f", OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}",
        "gpu": ", ".join(gpus) or "none",
        "compiler": "g++" if shutil.which("g++") else "none (torch.compile stays off)",
        "libraries": versions(LIBRARIES),
        "extras": ", ".join(f"{extra} ({versions(names)})" for extra, names in EXTRAS.items()),
    }


def versions(names: Sequence[str]) -> str:
    """Each with its version."""
    return ", ".join(f"{name} {version(name)}" for name in names)


def version(distribution: str) -> str:
    """The installed version, or "not installed"."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
