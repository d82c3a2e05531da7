"""The encoder-decoder against torch.nn.Transformer with the same weights; tied weights; initial build."""

import copy

import pytest
import torch
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.models import Seq2Seq, build
from polyhead.nn.position.sinusoidal import sinusoids

H, HEADS, V = 24, 4, 29


def copy_attention(theirs, mine):
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (mine.q_proj, mine.k_proj, mine.v_proj)]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (mine.q_proj, mine.k_proj, mine.v_proj)]))
    theirs.out_proj.load_state_dict(mine.o_proj.state_dict())


def peer(model):
    """torch.nn.Transformer with the weights of a model of ours."""
    c = model.config
    theirs = nn.Transformer(
        H,
        HEADS,
        c.n_layers,
        c.decoder_layers,
        c.d_ff,
        0.0,
        c.feed_forward.name,
        batch_first=True,
        norm_first=c.norm_first,
    )
    if not c.norm_first:  # torch closes its stacks with a norm; the paper does not after a post-norm
        theirs.encoder.norm = theirs.decoder.norm = None
    for stack, other in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        if c.norm_first:
            other.norm.load_state_dict(stack.final_norm.state_dict())
        for a, b in zip(stack.layers, other.layers, strict=True):
            copy_attention(b.self_attn, a.attn)
            residuals, norms = [a.attn_residual, a.ffn_residual], [b.norm1, b.norm2]
            if hasattr(a, "cross"):
                copy_attention(b.multihead_attn, a.cross)
                residuals, norms = (
                    [a.attn_residual, a.cross_residual, a.ffn_residual],
                    [b.norm1, b.norm2, b.norm3],
                )
            for residual, norm in zip(residuals, norms, strict=True):
                norm.load_state_dict(residual.norm.state_dict())
            b.linear1.load_state_dict(a.ffn.up_proj.state_dict())
            b.linear2.load_state_dict(a.ffn.down_proj.state_dict())
    return theirs


@pytest.mark.filterwarnings("ignore:.*nested.tensor")
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@torch.no_grad()
def test_the_model_equals_that_of_torch(norm_first, activation, training):
    config = ModelConfig(
        vocab_size=V, d_model=H, n_heads=HEADS, n_layers=2, n_decoder_layers=3, d_ff=40, dropout=0.0,
        norm_first=norm_first, feed_forward=activation, tie_embeddings="none",
    )  # fmt: skip
    model = build(config, seed=0).train(training)
    for p in model.parameters():
        p.add_(0.1 * torch.randn_like(p))
    theirs = peer(model).train(training)
    source, target = torch.randint(0, V, (3, 7)), torch.randint(0, V, (3, 5))
    source_pos = (
        torch.arange(7).expand(3, 7).masked_fill(torch.arange(7) >= torch.tensor([[7], [4], [1]]), -1)
    )
    padding, table = source_pos < 0, sinusoids(7, H)
    x = model.encoder_embedding.token(source) * H**0.5 + table
    y = model.decoder_embedding.token(target) * H**0.5 + table[:5]
    out = theirs(
        x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), tgt_is_causal=True,
        src_key_padding_mask=padding, memory_key_padding_mask=padding,
    )  # fmt: skip
    mine = model.features(source, target, source_pos)
    torch.testing.assert_close(mine, out, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        model(source, target, source_pos), out @ model.head.weight.T, rtol=0, atol=1e-5
    )


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize("tying", ["all", "target", "inputs", "none"])
def test_tied_embeddings_are_one_storage_after_build_load_copy_and_move(tying):
    config = ModelConfig(vocab_size=V, d_model=8, n_heads=2, n_layers=1, tie_embeddings=tying)
    built = build(config, seed=0)
    loaded = build(config, seed=1)
    loaded.load_state_dict(built.state_dict())
    stepped = build(config, seed=0)
    optimizer = torch.optim.SGD(stepped.parameters(), 0.1)
    tokens = torch.randint(0, V, (2, 4))
    stepped(tokens, tokens).logsumexp(-1).sum().backward()
    optimizer.step()
    for model in (built, loaded, copy.deepcopy(built), build(config).to(torch.float64), stepped):
        weights = (
            model.encoder_embedding.token.weight,
            model.decoder_embedding.token.weight,
            model.head.weight,
        )
        different = len({w.data_ptr() for w in weights})
        assert different == {"all": 1, "target": 2, "inputs": 2, "none": 3}[tying]
        assert torch.equal(weights[1], weights[2]) == (tying in ("all", "target"))
        assert torch.equal(weights[0], weights[1]) == (tying in ("all", "inputs"))
        named = [n for n, _ in model.named_parameters() if n.endswith(("token.weight", "head.weight"))]
        assert len(named) == different
        assert model.cache_shape.dtype == weights[0].dtype


def test_a_gradient_reaches_a_shared_embedding_from_every_use():
    config = ModelConfig(vocab_size=V, d_model=8, n_heads=2, n_layers=1, dropout=0.0)
    tied = build(config, seed=0)
    free = Seq2Seq(ModelConfig(**{**config.model_dump(), "tie_embeddings": "none"}))
    free.load_state_dict(tied.state_dict())
    source, target = torch.randint(0, V, (2, 4)), torch.randint(0, V, (2, 3))
    for model in (tied, free):
        model(source, target).square().sum().backward()
    uses = free.encoder_embedding.token, free.decoder_embedding.token, free.head
    torch.testing.assert_close(
        tied.head.weight.grad, sum(part.weight.grad for part in uses), rtol=1e-4, atol=1e-4
    )


def test_build_leaves_no_trace_of_the_random_state_before_it():
    config = ModelConfig(vocab_size=V, d_model=8, n_heads=2, n_layers=1)
    torch.manual_seed(123)
    first = build(config, seed=4).state_dict()
    torch.rand(17)
    second = build(config, seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_embeddings_are_scaled_unless_asked_otherwise():
    for scaled, factor in ((True, 4.0), (False, 1.0)):
        config = ModelConfig(
            vocab_size=V, d_model=16, n_heads=2, n_layers=1, scale_embedding=scaled, position="none"
        )
        embedding = build(config).eval().encoder_embedding
        assert torch.equal(embedding(torch.tensor([[3]]))[0, 0], embedding.token.weight[3] * factor)


def test_cross_attention_reads_the_last_encoder_output_and_has_no_positions_of_its_own():
    config = ModelConfig(vocab_size=V, d_model=16, n_heads=2, n_layers=2, position="rope")
    model = build(config, seed=0).eval()
    source = torch.randint(0, V, (1, 5))
    last = model.encoder(model.encoder_embedding(source))
    memory = model.encode(source)
    assert len(memory) == 2
    for layer, kv in zip(model.decoder.layers, memory, strict=True):
        flat = kv.k.transpose(1, 2).flatten(2)
        torch.testing.assert_close(flat, layer.cross.k_proj(last))
        torch.testing.assert_close(kv.v.transpose(1, 2).flatten(2), layer.cross.v_proj(last))
