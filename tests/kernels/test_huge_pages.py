import gc

import torch

from polyhead.kernels import malloc_tuning as huge_pages
from polyhead.kernels.malloc_tuning import CHUNK_BYTES, alloc_huge_pages


def test_chunks_are_aligned_and_outlive_their_neighbours(monkeypatch):
    sizes = [1, 15, 16, 17, 1000, CHUNK_BYTES // 4 - 5, 3, CHUNK_BYTES // 2 + 1, 2]
    chunks = [alloc_huge_pages(n) for n in sizes]
    for value, chunk in enumerate(chunks):
        chunk.fill_(value)
    for value, (n, chunk) in enumerate(zip(sizes, chunks, strict=True)):
        assert chunk.shape == (n,) and chunk.data_ptr() % 64 == 0
        assert bool((chunk == value).all())
    monkeypatch.setattr(huge_pages, "_rest", torch.empty(0))
    with torch.inference_mode():
        alloc_huge_pages(3)
    assert alloc_huge_pages(2).fill_(1).tolist() == [1, 1]
    chunks = [alloc_huge_pages(1000).fill_(i) for i in range(3)]
    chunk = chunks[1]
    del chunks
    monkeypatch.setattr(huge_pages, "_rest", torch.empty(0))
    gc.collect()
    new_chunks = [alloc_huge_pages(CHUNK_BYTES // 4).fill_(7) for _ in range(2)]
    assert bool((chunk == 1).all()) and len(new_chunks) == 2
