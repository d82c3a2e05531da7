import pytest
import torch

from polyhead.data.batching.collate import PairBatch, shard_pair_tokens
from polyhead.data.batching.token_windows import SequenceShard, TokenWindows, join_shards, shard_windows


def make_shards(n):
    return [SequenceShard(rank, n) for rank in range(n)]


def count(n):
    return torch.arange(n).expand(2, -1)


def test_rank_has_a_chunk_from_each_end():
    rows = [shard.select(torch.arange(12)[None]).tolist() for shard in make_shards(3)]
    assert rows == [[[0, 1, 10, 11]], [[2, 3, 8, 9]], [[4, 5, 6, 7]]]
    for n_tokens, expected in ((5, [[[0, 1, -1, -1]], [[2, 3, 4, -1]]]), (1, [[[0, -1]], [[-1, -1]]])):
        row = torch.arange(n_tokens)[None]  # padded to chunks of equal length
        assert [shard.select(row, -1).tolist() for shard in make_shards(2)] == expected


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dim", [1, 2])
def test_joined_shards_equal_the_rows(n, dim):
    x = torch.randn(2, 12, 12, 3)
    parts = torch.stack([shard.select(x, dim=dim) for shard in make_shards(n)])
    assert torch.equal(join_shards(parts, dim), x)


def test_windows_have_positions_and_no_label_at_padding():
    batch = TokenWindows(count(6) + 10, None, count(6) + 11)
    parts = [shard_windows(batch, shard) for shard in make_shards(2)]
    assert [part.pos[0].tolist() for part in parts] == [[0, 1, -1, -1], [2, 3, 4, 5]]
    assert [part.tokens[0].tolist() for part in parts] == [[10, 11, 0, 0], [12, 13, 14, 15]]
    assert [part.labels[1].tolist() for part in parts] == [[11, 12, -100, -100], [13, 14, 15, 16]]
    assert all(part.has_documents for part in parts)  # so that a model reads the positions


def test_pairs_count_the_labels_of_a_part():
    labels = torch.tensor([[7, 8, 9, 2], [7, 2, -100, -100]])
    batch = PairBatch(count(3), None, count(4), labels, 6)
    first, second = (shard_pair_tokens(batch, shard) for shard in make_shards(2))
    assert (first.n_tokens, second.n_tokens) == (3, 3)
    assert first.target_pos.tolist() == [[0, 3], [0, -1]] and second.target_pos.tolist() == [[1, 2], [1, -1]]
    assert first.source_pos.tolist() == [[0, -1]] * 2
    assert second.source.tolist() == [[1, 2]] * 2
