import pytest
import torch

from polyhead.nn.shard_plan import VocabularyShard, select_shard


@pytest.mark.parametrize(("n", "size"), [(8, 2), (19, 2), (19, 4), (5, 4), (2, 4)])
def test_shards_are_the_chunks_of_torch(n, size):
    indices = torch.arange(n)
    shards = [indices[select_shard(n, rank, size)].tolist() for rank in range(size)]
    chunks = [chunk.tolist() for chunk in indices.chunk(size)]
    assert shards == chunks + [[]] * (size - len(chunks))


def test_vocabulary_shard_normalizes_over_all_shards():
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 30
    labels = torch.tensor([0, 4, 6])
    maxima = scores.amax(-1, keepdim=True)

    def all_reduce(x, operation):
        return maxima if operation == "max" else (scores - maxima).exp().sum(-1, keepdim=True)

    label_log_p = torch.zeros(3, dtype=torch.float64)
    for tokens in (slice(0, 4), slice(4, 7)):
        shard = VocabularyShard(tokens, 7, all_reduce, lambda x: x)
        log_p = shard.log_softmax(scores[:, tokens])
        torch.testing.assert_close(log_p, scores.log_softmax(-1)[:, tokens])
        index, is_own = shard.find_labels(labels)
        label_log_p += log_p.gather(1, index[:, None])[:, 0] * is_own
    torch.testing.assert_close(label_log_p, scores.log_softmax(-1).gather(1, labels[:, None])[:, 0])
