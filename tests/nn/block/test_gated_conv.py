import pytest
import torch
from tests.nn.block.block_helpers import HOLES, C, draw, make_block


def gated_sum(layer, tokens, t, n_before):
    """Gehring et al. (2017): A * sigmoid(B), [A B] = W [x_(t - n_before) ...] + b, 0 outside of the row."""
    total = layer.conv.bias.clone()
    for k in range(layer.kernel):
        i = t - n_before + k
        if 0 <= i < len(tokens):
            total = total + layer.conv.weight[:, k * C : (k + 1) * C] @ tokens[i]
    return total[:C] * torch.sigmoid(total[C:])


def reference(layer, tokens, n_before):
    return torch.stack([tokens[t] + gated_sum(layer, tokens, t, n_before) for t in range(len(tokens))])


@pytest.mark.parametrize("kernel", [3, 5])
def test_encoder_reads_both_sides(kernel):
    layer, x = make_block("gated_conv", kernel=kernel), draw(3, 7)
    output = layer(x, HOLES)
    for b, is_token in enumerate(HOLES >= 0):
        expected = reference(layer, x[b][is_token], kernel // 2)
        torch.testing.assert_close(output[b][is_token], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_decoder_reads_the_past_and_the_source(kernel):
    layer, x, source = make_block("gated_conv", cross=True, kernel=kernel), draw(3, 7), draw(3, 4)
    output = layer(x, HOLES, memory=layer.project_kv(source, None))
    for b, is_token in enumerate(HOLES >= 0):
        h = reference(layer, x[b][is_token], kernel - 1)
        context = layer.cross(h[None], None, memory=layer.cross.project_kv(source[b : b + 1], None))[0]
        torch.testing.assert_close(output[b][is_token], h + context, rtol=0, atol=1e-12)
