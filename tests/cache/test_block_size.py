import pytest
import torch
from tests.cache.cache_helpers import build_paged

from polyhead.cache.paged import choose_block_size, estimate_waste


def test_block_size_wastes_less_than_4_percent():
    for length in range(1, 2000):
        block = choose_block_size(length)
        assert block == 1 or estimate_waste(block, length) < 0.04
        assert block == 32 or estimate_waste(2 * block, length) >= 0.04
    lengths = torch.arange(1, 16 * 1000 + 1)  # a length of each remainder equally often
    empty = (-lengths % 16).double().mean()
    assert estimate_waste(16, 500.0) == pytest.approx(float(empty) / (500 + float(empty)))
    assert build_paged(1, max_len=1000).block_size == choose_block_size(500) == 32
    assert build_paged(1, max_len=1000, expected_len=14).block_size == 2
