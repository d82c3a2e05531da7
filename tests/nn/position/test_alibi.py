import pytest
import torch

from polyhead.nn.position.relative import get_alibi_slopes


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 7, 8, 12, 16, 20, 32, 71])
def test_slopes_equal_those_of_bloom_and_the_paper(n_heads):
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mask = torch.ones(1, 2, dtype=torch.long)  # the bias of slot 1 is the slope
    expected = modeling.build_alibi_tensor(mask, n_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(get_alibi_slopes(n_heads)), expected, rtol=1e-5, atol=0)
    if n_heads & (n_heads - 1) == 0:
        assert get_alibi_slopes(n_heads) == [2 ** (-8 * h / n_heads) for h in range(1, n_heads + 1)]
