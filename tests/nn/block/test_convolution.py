import pytest
import torch
from tests.nn.block.block_helpers import HOLES, C, draw, make_block

DESIGNS = [("conv", activation) for activation in ("relu", "gelu", "tanh", "none")] + [("gated_conv", "gate")]


def convolve(layer, tokens, t, n_before, activation):
    """g(y), y = W [x_(t - n_before) ...] + b, 0 outside of the row; with a gate A * sigmoid(B), y = [A B]."""
    total = layer.conv.bias.clone()
    for k in range(layer.kernel):
        i = t - n_before + k
        if 0 <= i < len(tokens):
            total = total + layer.conv.weight[:, k * C : (k + 1) * C] @ tokens[i]
    values = {"relu": total.clamp(min=0), "tanh": 2 / (1 + torch.exp(-2 * total)) - 1, "none": total}
    values["gelu"] = total * (1 + torch.erf(total / 2**0.5)) / 2
    return values[activation] if activation in values else total[:C] * torch.sigmoid(total[C:])


def reference(layer, tokens, n_before, activation):
    outputs = [convolve(layer, tokens, t, n_before, activation) for t in range(len(tokens))]
    return tokens + torch.stack(outputs)


def make_convolution(name, activation, **options):
    return make_block(name, **options | ({"activation": activation} if name == "conv" else {}))


@pytest.mark.parametrize(("name", "activation"), DESIGNS)
@pytest.mark.parametrize("kernel", [3, 5])
def test_encoder_reads_both_sides(kernel, name, activation):
    layer, x = make_convolution(name, activation, kernel=kernel), draw(3, 7)
    output = layer(x, HOLES)
    for b, is_token in enumerate(HOLES >= 0):
        expected = reference(layer, x[b][is_token], kernel // 2, activation)
        torch.testing.assert_close(output[b][is_token], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "activation"), DESIGNS[::4])
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_decoder_reads_the_past_and_the_source(kernel, name, activation):
    layer = make_convolution(name, activation, cross=True, kernel=kernel)
    x, source = draw(3, 7), draw(3, 4)
    output = layer(x, HOLES, memory=layer.project_kv(source, None))
    for b, is_token in enumerate(HOLES >= 0):
        h = reference(layer, x[b][is_token], kernel - 1, activation)
        context = layer.cross(h[None], None, memory=layer.cross.project_kv(source[b : b + 1], None))[0]
        torch.testing.assert_close(output[b][is_token], h + context, rtol=0, atol=1e-12)
