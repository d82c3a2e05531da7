"""Memory in large pages, for what is read from end to end at every step: small ones cost a look-up each."""

from __future__ import annotations

import mmap
import sys
from threading import Lock

import torch
from torch import Tensor

PAGE = 2**21  # bytes of a large page
CHUNK = 2**26  # bytes asked for at once; what is never touched takes no memory
LINE = 16  # numbers of a cache line, at which every piece begins

_lock = Lock()
_rest = torch.empty(0)  # of the newest chunk


def in_large_pages(n: int) -> Tensor:
    """n fp32 numbers that hold anything. Memory that malloc gives again would stay in the small pages it was in."""
    global _rest
    if sys.platform != "linux":
        return torch.empty(n)
    with _lock, torch.inference_mode(False):  # the next piece may be wanted outside of it
        if n > len(_rest):
            _rest = _chunk(max(4 * n, CHUNK))
        piece, _rest = _rest[:n], _rest[-(-n // LINE) * LINE :]
    return piece


def _chunk(nbytes: int) -> Tensor:
    """Fresh memory from the beginning of a large page; it lives as long as a piece of it."""
    nbytes = -(-nbytes // PAGE) * PAGE
    fresh = mmap.mmap(-1, nbytes + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = torch.frombuffer(fresh, dtype=torch.float32)
    first = -numbers.data_ptr() % PAGE // 4
    if hasattr(mmap, "MADV_HUGEPAGE"):
        fresh.madvise(mmap.MADV_HUGEPAGE)
    return numbers[first : first + nbytes // 4]
