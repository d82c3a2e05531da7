"""Memory in huge pages for weights, which every step reads completely: each small page costs a TLB lookup."""

from __future__ import annotations

import mmap
import sys
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
