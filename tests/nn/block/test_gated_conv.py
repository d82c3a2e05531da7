"""Convolutional blocks against loops over the sum, and torch's convolution."""

import pytest
import torch
import torch.nn.functional as F

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import BLOCK
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.models import build
from polyhead.nn.position.base import Position
from polyhead.nn.validate_model import check_model

C = 6
SIZES = {
    "vocab_size": 23,
    "d_model": C,
    "n_heads": 2,
    "n_layers": 2,
    "d_ff": 8,
    "max_len": 32,
    "dropout": 0.0,
}
HOLES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, 0, -1, 1, 2, -1, -1], [-1, -1, -1, 0, 1, 2, 3]])


def block(kernel, cross=False, **changes):
    """One layer in float64 with random weights, no norm."""
    config = ModelConfig(**SIZES, norm="none", position="none", **changes)
    shape = config.attention_shape(causal=cross)
    torch.manual_seed(0)
    made = BLOCK.build(Choice("gated_conv", kernel=kernel), config, shape, Position(shape), cross).double()
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(std=0.5)
    return made


def gated_sum(layer, tokens, t, before):
    """Gehring et al. (2017): A * sigmoid(B), [A B] = W [x_t-before ... ] + b, 0 beyond
    the ends of the row.
    """
    total = layer.conv.bias.clone()
    for k in range(layer.kernel):
        at = t - before + k
        if 0 <= at < len(tokens):
            total = total + layer.conv.weight[:, k * C : (k + 1) * C] @ tokens[at]
    return total[:C] * torch.sigmoid(total[C:])


@pytest.mark.parametrize("kernel", [3, 5])
def test_an_encoder_looks_to_both_sides(kernel):
    layer, x = block(kernel), torch.randn(3, 7, C, dtype=torch.float64)
    out = layer(x, HOLES)
    for b in range(3):
        valid = HOLES[b] >= 0
        tokens = x[b][valid]
        wanted = [tokens[t] + gated_sum(layer, tokens, t, kernel // 2) for t in range(len(tokens))]
        torch.testing.assert_close(out[b][valid], torch.stack(wanted), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_a_decoder_looks_back_and_then_at_the_source(kernel):
    layer, x = block(kernel, cross=True), torch.randn(3, 7, C, dtype=torch.float64)
    source = torch.randn(3, 4, C, dtype=torch.float64)
    out = layer(x, HOLES, memory=layer.project_kv(source, None))
    for b in range(3):
        valid = HOLES[b] >= 0
        tokens = x[b][valid]
        own = torch.stack([tokens[t] + gated_sum(layer, tokens, t, kernel - 1) for t in range(len(tokens))])
        seen = layer.cross(own[None], None, memory=layer.cross.project_kv(source[b : b + 1], None))[0]
        torch.testing.assert_close(out[b][valid], own + seen, rtol=0, atol=1e-12)


def test_whole_rows_equal_the_convolution_of_torch():
    layer, x = block(3), torch.randn(2, 9, C, dtype=torch.float64)
    weight = layer.conv.weight.view(2 * C, 3, C).mT  # (out, in, kernel)
    wanted = x + F.glu(F.conv1d(x.mT, weight, layer.conv.bias, padding=1), 1).mT
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-12)


def test_the_cache_keeps_the_last_tokens_of_each_row():
    layer = block(4, cross=True).float()
    model = build(ModelConfig(**SIZES, decoder_block={"name": "gated_conv", "kernel": 4}))
    assert layer.state == model.cache_shape.states[0] == ((3, C),)
    memory = layer.project_kv(torch.randn(3, 5, C), None)
    cache = make_cache(None, model.cache_shape, 3, 8)
    x, pos = torch.randn(3, 4, C), torch.tensor([[0, 1, 2, 3], [-1, 0, -1, 1], [-1, -1, -1, -1]])
    more, then = torch.randn(3, 2, C), torch.tensor([[4, -1], [-1, 2], [0, 1]])
    nothing = torch.zeros(1, C)
    with torch.no_grad():
        for tokens, at in ((x, pos), (more, then)):
            cache.prepare_step(range(3), at)
            layer(tokens, at, cache.layers[0], memory)
    (kept,) = cache.layers[0].state
    assert torch.equal(kept[0], torch.stack([x[0, 2], x[0, 3], more[0, 0]]))
    assert torch.equal(kept[1], torch.stack([x[1, 1], x[1, 3], more[1, 1]]))
    assert torch.equal(kept[2], torch.cat([nothing, more[2]]))


@pytest.mark.parametrize("decoder", ["gated_conv", "transformer", "gru"])
def test_the_score_of_an_output_is_its_probability_given_whole(decoder):
    model = build(ModelConfig(**SIZES, block="gated_conv", decoder_block=decoder), seed=3).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn_like(p))
    source = torch.randint(5, 23, (3, 7))
    given = {"bos_id": 1, "eos_id": 2, "max_new_tokens": [9, 3, 6]}
    found = beam_search(model, source, HOLES, beam_size=4, n_best=4, **given)
    found += [[best] for best in greedy_search(model, source, HOLES, **given)]
    for b, best in enumerate(found):
        tokens = source[b % 3][HOLES[b % 3] >= 0][None]
        for hypothesis in best:
            target = torch.tensor([[1, *hypothesis.tokens, 2]])
            log_p = model(tokens, target[:, :-1]).detach().log_softmax(-1)[0]
            each = log_p.gather(1, target[0, 1:, None])[:, 0]
            sums = (
                float(each.sum()),
                float(each[:-1].sum()),
            )  # with the end of the sentence, or cut before it
            assert min(abs(hypothesis.log_prob - s) for s in sums) < 1e-4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"block": {"name": "gated_conv", "kernel": 4}},
            "kernel of block 'gated_conv' is 4; in an encoder .* it must be odd: 3 or 5",
        ),
        ({"block": {"name": "gated_conv", "kernel": 1}}, "it includes the token itself: the minimum is 2"),
        (
            {"block": "gated_conv", "position": "rope"},
            "position 'rope' acts on self-attention, but blocks gated_conv have none",
        ),
        (
            {"decoder_block": "gated_conv", "decoder_attention": "softmax"},
            "a decoder of block 'gated_conv' does not have",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**SIZES, head_dim=4, **given))
