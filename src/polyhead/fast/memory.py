"""Memory of a process that computes for hours: kept where it is wanted again, given up where it is not."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST = 2**25  # bytes: glibc takes no more as the least size of what it maps from the system
KERNELS = (
    64  # that oneDNN keeps compiled; its own 1,024 are a gigabyte, for every length of batch has its own
)


def machine_memory() -> int:
    """Bytes of memory of this machine, 0 where it cannot be asked."""
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 0


def give_back() -> None:
    """Hand to the system what was freed in between of what is still held, as much as was freed when a model became smaller."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def tune_memory() -> None:
    """Settings of this process, to be made before the first matrix product.

    glibc keeps what is freed instead of handing it back: a step allocates what the last one freed, and fresh
    memory costs as much as filling it twice (a training step of the tiny preset takes 1.13 times as long).
    oneDNN keeps fewer compiled kernels: half the memory of a bf16 training whose batches differ in length, at
    the same speed. A value that the user has set stands.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST)
    mallopt(M_TRIM_THRESHOLD, 2**30)
