import copy

import pytest
import torch

from polyhead import Choice, ModelConfig
from polyhead.cache.factory import make_cache
from polyhead.core.registry import BLOCK, POSITION
from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.linear import NativeLinear, PackedLinear
from polyhead.kernels.pack_model import can_pack, pack_model
from polyhead.models import build, preset_config
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.block.transformer import Block
from polyhead.nn.norm import NoNorm
from polyhead.nn.position.base import Position

CONFIG = preset_config("tiny", 97, n_layers=2, feed_forward="swiglu", n_kv_heads=2, max_len=32)
SOURCE, TARGET = torch.randint(5, 97, (3, 9)), torch.randint(5, 97, (3, 7))

pytestmark = pytest.mark.skipif(not can_pack(), reason="this build of torch has no packed products")


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"]
)
def test_packed_logits(dtype, tolerance):
    # kernels join the projections of queries, keys and values
    num_products = 2 * 7 + 2 * 11 + 1 if load_kernels() is None else 2 * 5 + 2 * 7 + 1
    model, pos = build(CONFIG, seed=1).eval().to(dtype), torch.arange(9).repeat(3, 1)
    pos[1, 5:] = -1
    with torch.inference_mode():
        plain = model(SOURCE, TARGET, pos)
        packed = [x for x in pack_model(model).modules() if isinstance(x, PackedLinear | NativeLinear)]
        assert len(packed) == num_products
        torch.testing.assert_close(model(SOURCE, TARGET, pos), plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("block", BLOCK.names())
def test_packed_decoding_of_every_block(block, kind):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 32, "d_ff": 32, "norm_first": True}
    config = ModelConfig(kind=kind, vocab_size=97, block=Choice(block), position=Choice("none"), **sizes)
    model = build(config, seed=1).eval()

    def decode_logits(model):
        tokens, memory = TARGET, None
        if kind == "encoder-decoder":
            memory = [kv.contiguous_for_decoding() for kv in model.encode(SOURCE)]
        cache, actual = make_cache(None, model.cache_shape, 3, 32), []
        for i, piece in enumerate((tokens[:, :4], *tokens[:, 4:].split(1, 1))):
            pos = torch.arange(4).expand(3, -1) if not i else torch.full((3, 1), 3 + i)
            cache.prepare_step(range(3), pos)
            actual.append(model.decode(piece, pos, cache, memory))
        return torch.cat(actual, 1)

    with torch.inference_mode():
        plain = decode_logits(model)
        torch.testing.assert_close(decode_logits(pack_model(model)), plain, atol=1e-5, rtol=1e-5)


def test_packed_models_can_be_copied_and_hooked():
    model = pack_model(build(CONFIG, seed=1).eval())
    other = copy.deepcopy(model)
    assert [type(a).__name__ for a in model.modules()] == [type(a).__name__ for a in other.modules()]
    assert isinstance(model.decoder.layers[0], Block) and isinstance(model.decoder.layers[0].attn, Attention)
    assert model.head is model._modules["head"]
    expected = model(SOURCE, TARGET)
    model.decoder.layers[1].ffn_residual.norm = NoNorm(128)
    assert not torch.equal(model(SOURCE, TARGET), expected)
    assert torch.equal(other(SOURCE, TARGET), expected)
    model, calls = build(CONFIG, seed=1).eval(), []
    model.decoder.register_forward_hook(lambda *args: calls.append(args))
    pack_model(model)(SOURCE, TARGET)
    assert len(calls) == 1
    model = pack_model(build(CONFIG, seed=1).train())
    assert not any(isinstance(layer, PackedLinear | NativeLinear) for layer in model.modules())


def test_custom_positions_are_not_skipped(monkeypatch):
    """Kernels support only known positions; a model with another one keeps its own layers."""

    class CustomBias(Position):
        def bias(self, q, kv, pos, scale=None):
            return kv.k.new_ones(q.shape[2], kv.k.shape[2]).tril(-2).mul(-3)[None, None]

    class CustomRotation(Position):
        def rotate(self, x, pos):
            return x.flip(-1)

    class CustomBiasAndEmbedding(CustomBias):
        def embed(self, x, pos):
            return x

    assert [part.kind for part in (CustomBias, CustomBiasAndEmbedding)] == ["scores", "scores"]
    assert (CustomRotation.kind, Position.kind) == ("heads", "nothing")
    monkeypatch.setitem(POSITION._parts, "custom", CustomBias)
    config = ModelConfig(kind="decoder", vocab_size=50, d_model=64, n_heads=4, n_layers=2, position="custom")
    model, tokens = build(config, seed=1).eval(), torch.arange(5, 25)[None]
    with torch.inference_mode():
        torch.testing.assert_close(pack_model(model)(tokens), model(tokens), atol=1e-4, rtol=0)
