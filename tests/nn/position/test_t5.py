import pytest
import torch

from polyhead.nn.position.relative import t5_bucket_index


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 20), (6, 40), (64, 256), (4, 3), (10, 300)]
)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_buckets_equal_those_of_transformers(buckets, max_distance, causal):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-300, 301)
    expected = modeling.T5Attention._relative_position_bucket(distance, not causal, buckets, max_distance)
    actual = t5_bucket_index(distance, buckets, max_distance, causal)
    assert torch.equal(actual, expected) and set(actual.tolist()) <= set(range(buckets))
