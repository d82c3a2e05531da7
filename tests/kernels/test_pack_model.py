"""Packed weights: the same numbers as the plain model."""

import copy

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import BLOCK, POSITION
from polyhead.generation.decoding.beam_search import beam_search
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
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"]
)
def test_a_packed_model_gives_the_logits_of_the_plain_one(dtype, near):
    # where queries, keys and values are one
    products = 2 * 7 + 2 * 11 + 1 if load_kernels() is None else 2 * 5 + 2 * 7 + 1
    model, pos = build(CONFIG, seed=1).eval().to(dtype), torch.arange(9).repeat(3, 1)
    pos[1, 5:] = -1
    with torch.inference_mode():
        plain = model(SOURCE, TARGET, pos)
        assert (
            sum(isinstance(layer, PackedLinear | NativeLinear) for layer in pack_model(model).modules())
            == products
        )
        torch.testing.assert_close(model(SOURCE, TARGET, pos), plain, atol=near, rtol=near)


def test_beams_of_a_packed_model_are_those_of_the_plain_one():
    model = build(CONFIG, seed=1).eval()
    search = {"bos_id": 1, "eos_id": 2, "beam_size": 4, "max_new_tokens": [12] * 3}
    plain = beam_search(model, SOURCE, None, **search)
    found = beam_search(pack_model(model), SOURCE, None, **search)
    assert [[h.tokens for h in best] for best in found] == [[h.tokens for h in best] for best in plain]


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("block", BLOCK.names())
def test_every_block_decodes_packed_as_it_does_plain(block, kind):
    """Read in a piece, then token by token, with the memory that the block asks for."""
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 32, "d_ff": 32, "norm_first": True}
    config = ModelConfig(kind=kind, vocab_size=97, block=Choice(block), position=Choice("none"), **sizes)
    model = build(config, seed=1).eval()

    def decoded(model):
        tokens, memory = TARGET, None
        if kind == "encoder-decoder":
            memory = [kept.contiguous_for_decoding() for kept in model.encode(SOURCE)]
        held, found = make_cache(None, model.cache_shape, 3, 32), []
        for i, piece in enumerate((tokens[:, :4], *tokens[:, 4:].split(1, 1))):
            pos = torch.arange(4).expand(3, -1) if not i else torch.full((3, 1), 3 + i)
            held.prepare_step(range(3), pos)
            found.append(model.decode(piece, pos, held, memory))
        return torch.cat(found, 1)

    with torch.inference_mode():
        plain = decoded(model)
        torch.testing.assert_close(decoded(pack_model(model)), plain, atol=1e-5, rtol=1e-5)


def test_a_model_in_training_is_left_alone():
    model = build(CONFIG, seed=1).train()
    assert not any(isinstance(layer, PackedLinear | NativeLinear) for layer in pack_model(model).modules())


def test_a_packed_model_can_be_copied_and_its_parts_are_what_they_were():
    model = pack_model(build(CONFIG, seed=1).eval())
    other = copy.deepcopy(model)
    assert [type(a).__name__ for a in model.modules()] == [type(a).__name__ for a in other.modules()]
    assert isinstance(model.decoder.layers[0], Block) and isinstance(model.decoder.layers[0].attn, Attention)
    assert model.head is model._modules["head"]
    wanted = model(SOURCE, TARGET)
    model.decoder.layers[1].ffn_residual.norm = NoNorm(128)
    assert not torch.equal(model(SOURCE, TARGET), wanted)
    assert torch.equal(other(SOURCE, TARGET), wanted)


def test_a_hook_from_before_still_fires():
    model, seen = build(CONFIG, seed=1).eval(), []
    model.decoder.register_forward_hook(lambda *given: seen.append(given))
    pack_model(model)(SOURCE, TARGET)
    assert len(seen) == 1


def test_a_position_of_ones_own_is_not_passed_over(monkeypatch):
    """The kernels would leave out a bias that they know nothing of."""

    class Near(Position):
        def bias(self, q, kv, pos, scale=None):
            return kv.k.new_ones(q.shape[2], kv.k.shape[2]).tril(-2).mul(-3)[None, None]

    class Turned(Position):
        def rotate(self, x, pos):
            return x.flip(-1)

    class Nearer(Near):
        def embed(self, x, pos):
            return x

    assert (Near.kind, Turned.kind, Nearer.kind) == ("scores", "heads", "scores")
    assert Position.kind == "nothing"
    monkeypatch.setitem(POSITION._parts, "near", Near)
    config = ModelConfig(kind="decoder", vocab_size=50, d_model=64, n_heads=4, n_layers=2, position="near")
    model, tokens = build(config, seed=1).eval(), torch.arange(5, 25)[None]
    with torch.inference_mode():
        torch.testing.assert_close(pack_model(model)(tokens), model(tokens), atol=1e-4, rtol=0)
