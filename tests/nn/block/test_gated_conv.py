import pytest
import torch
from tests.nn.block.block_helpers import HOLES, SIZES, C, draw, make_block

from polyhead import ModelConfig, build
from polyhead.cache.factory import make_cache


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


@torch.no_grad()
def test_cache_holds_the_last_tokens_of_each_row():
    layer = make_block("gated_conv", cross=True, kernel=4).float()
    model = build(ModelConfig(**SIZES, decoder_block={"name": "gated_conv", "kernel": 4}))
    assert layer.state == model.cache_shape.states[0] == ((3, C),)
    memory, cache = layer.project_kv(torch.randn(3, 5, C), None), make_cache(None, model.cache_shape, 3, 8)
    x, pos = torch.randn(3, 4, C), torch.tensor([[0, 1, 2, 3], [-1, 0, -1, 1], [-1, -1, -1, -1]])
    y, next_pos = torch.randn(3, 2, C), torch.tensor([[4, -1], [-1, 2], [0, 1]])
    for step, step_pos in ((x, pos), (y, next_pos)):
        cache.prepare_step(range(3), step_pos)
        layer(step, step_pos, cache.layers[0], memory)
    (state,) = cache.layers[0].state
    assert torch.equal(state[0], torch.stack([x[0, 2], x[0, 3], y[0, 0]]))
    assert torch.equal(state[1], torch.stack([x[1, 1], x[1, 3], y[1, 1]]))
    assert torch.equal(state[2], torch.cat([torch.zeros(1, C), y[2]]))
