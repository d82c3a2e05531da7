"""Pieces of large pages are memory like any other."""

from __future__ import annotations

import gc

import torch

from polyhead.kernels import huge_pages
from polyhead.kernels.huge_pages import CHUNK_BYTES, alloc_huge_pages


def test_pieces_do_not_overlap_and_begin_at_lines():
    sizes = [1, 15, 16, 17, 1000, CHUNK_BYTES // 4 - 5, 3, CHUNK_BYTES // 2 + 1, 2]
    pieces = [alloc_huge_pages(n) for n in sizes]
    for value, piece in enumerate(pieces):
        piece.fill_(value)
    for value, (n, piece) in enumerate(zip(sizes, pieces, strict=True)):
        assert piece.shape == (n,)
        assert piece.data_ptr() % 64 == 0
        assert bool((piece == value).all())


def test_a_piece_may_be_written_whoever_asked_for_the_one_before(monkeypatch):
    monkeypatch.setattr(huge_pages, "_rest", torch.empty(0))
    with torch.inference_mode():
        alloc_huge_pages(3)
    assert alloc_huge_pages(2).fill_(1).tolist() == [1, 1]


def test_a_piece_stays_when_others_and_the_rest_of_its_memory_are_gone(monkeypatch):
    pieces = [alloc_huge_pages(1000).fill_(i) for i in range(3)]
    kept = pieces[1]
    del pieces
    monkeypatch.setattr(huge_pages, "_rest", torch.empty(0))
    gc.collect()
    fresh = [alloc_huge_pages(CHUNK_BYTES // 4).fill_(7) for _ in range(2)]
    assert bool((kept == 1).all())
    assert len(fresh) == 2
