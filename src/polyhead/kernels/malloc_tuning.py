"""Memory settings of long processes: freed memory is reused between steps, and returned after packing."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2**21
CHUNK_BYTES = 2**26  # bytes mapped at once; untouched pages take no memory
CACHE_LINE_FLOATS = 16  # every allocation is aligned to a cache line

_lock = Lock()
_rest = torch.empty(0)  # unused part of the newest chunk


def alloc_huge_pages(n: int) -> Tensor:
    """n uninitialised fp32 numbers in huge pages; memory that malloc reuses would stay in small pages."""
    global _rest
    if sys.platform != "linux":
        return torch.empty(n)
    with _lock, torch.inference_mode(False):  # later allocations may be outside of it
        if n > len(_rest):
            _rest = _map_chunk(max(4 * n, CHUNK_BYTES))
        piece, _rest = _rest[:n], _rest[-(-n // CACHE_LINE_FLOATS) * CACHE_LINE_FLOATS :]
    return piece


def _map_chunk(nbytes: int) -> Tensor:
    """New memory that starts at a huge page; it lives as long as any view of it."""
    nbytes = -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    chunk = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = torch.frombuffer(chunk, dtype=torch.float32)
    offset = -numbers.data_ptr() % HUGE_PAGE_BYTES // 4
    if hasattr(mmap, "MADV_HUGEPAGE"):
        chunk.madvise(mmap.MADV_HUGEPAGE)
    return numbers[offset : offset + nbytes // 4]


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
_MMAP_MAX = 2**16  # tensors mapped one by one: glibc's own limit
_RETURNED_BYTES = 2**18  # tensors of this size and more are returned when freed, without reuse
# oneDNN compiles a kernel for each shape, and real batches change shape at every step: a kernel that is not
# kept is compiled again. One takes 0.3 to 1 MB, so all of them a sixteenth of the memory at the most.
_BYTES_PER_KERNEL = 2**24
_MAX_KERNELS = 2**14
CAPACITY_NAMES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN, and torch's own of it


def get_machine_memory() -> int:
    """Bytes of memory of this machine; 0 if unknown."""
    is_known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if is_known else 0


def count_kernels_to_keep(machine_bytes: int, n_processes: int = 1) -> int:
    """Kernels that oneDNN keeps in each process of a machine; its own default if the memory is unknown."""
    return min(machine_bytes // (_BYTES_PER_KERNEL * n_processes), _MAX_KERNELS) or 1024


def trim_heap() -> None:
    """Return freed heap memory to the system, such as that of weights after packing (glibc's malloc_trim)."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def tune_malloc(reuse: bool = True) -> None:
    """Tune memory reuse in this process; call it before the first matrix product.

    With ``reuse=False`` tensors of a quarter of a megabyte or more are returned to the system when they are
    freed. Where each process holds a part of a model, its peak is then that of the tensors in use: weights
    that are gathered and dropped would otherwise stay in a heap with gaps.

    glibc reuses freed memory instead of returning it: a step allocates what the last one freed, and new
    memory costs as much as filling it twice (otherwise a training step of the tiny preset takes 1.13 times as
    long). That holds for tensors of any size: a step of GPT-2 small takes 1.2 times as long if glibc maps
    those above 32 MB, its own limit, one by one; the peak is then 3 % lower. oneDNN keeps as many compiled
    kernels as memory allows, unless the user has set ONEDNN_PRIMITIVE_CACHE_CAPACITY or LRU_CACHE_CAPACITY.
    """
    n_local = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by launchers of several processes
    n_processes = max(1, int(n_local)) if n_local.isdecimal() else 1
    n_kernels = count_kernels_to_keep(get_machine_memory(), n_processes)
    for name in CAPACITY_NAMES:
        os.environ.setdefault(name, str(n_kernels))
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(M_MMAP_MAX, 0 if reuse else _MMAP_MAX)
    if not reuse:
        mallopt(M_MMAP_THRESHOLD, _RETURNED_BYTES)
    mallopt(M_TRIM_THRESHOLD, 2**30 if reuse else _RETURNED_BYTES)
