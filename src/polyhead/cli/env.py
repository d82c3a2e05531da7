"""``polyhead env``: describe the environment for bug reports, without host name and private paths."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import shutil
from collections.abc import Sequence

import polyhead
from polyhead.core.extras import EXTRAS

LIBRARIES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "pydantic",
    "typer",
    "sacrebleu",
    "pyyaml",
    "jinja2",
)
CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")


def run() -> None:
    """Describe this installation, for bug reports."""
    for name, value in describe_environment().items():
        print(f"{name:<12} {value}")


def describe_environment() -> dict[str, str]:
    """Return versions, processor, threads and extras, in the order of printing."""
    import torch

    from polyhead.kernels.build_extension import inspect_kernels
    from polyhead.kernels.cpu_features import cpu_flags
    from polyhead.kernels.malloc_tuning import get_machine_memory

    memory, kernels = get_machine_memory(), inspect_kernels()
    flags = [flag for flag in CPU_FLAGS if flag in cpu_flags()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "polyhead": polyhead.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{torch.backends.cpu.get_cpu_capability()}; {' '.join(flags) or 'flags unknown'}",
        "memory": f"{memory / 2**30:.0f} GiB" if memory else "unknown",
        "threads": f"{torch.get_num_threads()} used by torch, {cores} cores to run on"
        + f", OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}",
        "gpu": ", ".join(gpus) or "none",
        "compiler": "g++" if shutil.which("g++") else "none (torch.compile stays off)",
        "kernels": hide_directories(
            f"used: {kernels.path}" if kernels.path else f"not used: {kernels.reason}"
        ),
        "libraries": format_versions(LIBRARIES),
        "extras": ", ".join(f"{extra} ({format_versions(names)})" for extra, names in EXTRAS.items()),
    }


def hide_directories(text: str) -> str:
    """Replace the user's cache directory and home, which may name a person, as a shell would write them."""
    for name in ("$XDG_CACHE_HOME", "~"):
        directory = os.path.expanduser(os.path.expandvars(name))
        text = text.replace(directory, name) if len(directory) > 1 else text
    return text


def format_versions(names: Sequence[str]) -> str:
    """Format distributions with their versions."""
    return ", ".join(f"{name} {get_version(name)}" for name in names)


def get_version(distribution: str) -> str:
    """Return the installed version, or "not installed"."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
