import copy

import pytest
import torch
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.models import build
from polyhead.nn.position.absolute import sinusoids

D, HEADS, V = 24, 4, 29


def copy_attention(target, attn):
    target.in_proj_weight.copy_(torch.cat([p.weight for p in (attn.q_proj, attn.k_proj, attn.v_proj)]))
    target.in_proj_bias.copy_(torch.cat([p.bias for p in (attn.q_proj, attn.k_proj, attn.v_proj)]))
    target.out_proj.load_state_dict(attn.o_proj.state_dict())


def build_reference(model):
    c = model.config
    sizes = D, HEADS, c.n_layers, c.decoder_layers, c.d_ff, 0.0, c.feed_forward.name
    reference = nn.Transformer(*sizes, batch_first=True, norm_first=c.norm_first)
    if not c.norm_first:  # torch closes its stacks with a norm; the paper does not after a post-norm
        reference.encoder.norm = reference.decoder.norm = None
    for stack, other in ((model.encoder, reference.encoder), (model.decoder, reference.decoder)):
        if c.norm_first:
            other.norm.load_state_dict(stack.final_norm.state_dict())
        for a, b in zip(stack.layers, other.layers, strict=True):
            copy_attention(b.self_attn, a.attn)
            residuals, norms = [a.attn_residual, a.ffn_residual], [b.norm1, b.norm2]
            if a.cross is not None:
                copy_attention(b.multihead_attn, a.cross)
                residuals.insert(1, a.cross_residual)
                norms.append(b.norm3)
            for residual, norm in zip(residuals, norms, strict=True):
                norm.load_state_dict(residual.norm.state_dict())
            b.linear1.load_state_dict(a.ffn.up_proj.state_dict())
            b.linear2.load_state_dict(a.ffn.down_proj.state_dict())
    return reference


@pytest.mark.filterwarnings("ignore:.*nested.tensor")
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@torch.no_grad()
def test_the_model_equals_that_of_torch(norm_first, activation, training):
    sizes = {"vocab_size": V, "d_model": D, "n_heads": HEADS, "n_layers": 2, "n_decoder_layers": 3}
    sizes |= {"d_ff": 40}
    parts = {"dropout": 0.0, "norm_first": norm_first, "feed_forward": activation, "tie_embeddings": "none"}
    model = build(ModelConfig(**sizes, **parts), seed=0).train(training)
    for p in model.parameters():
        p.add_(0.1 * torch.randn_like(p))
    reference = build_reference(model).train(training)
    source, target = torch.randint(0, V, (3, 7)), torch.randint(0, V, (3, 5))
    is_padding = torch.arange(7) >= torch.tensor([[7], [4], [1]])
    source_pos = torch.arange(7).expand(3, 7).masked_fill(is_padding, -1)
    x = model.encoder_embedding.token(source) * D**0.5 + sinusoids(7, D)
    y = model.decoder_embedding.token(target) * D**0.5 + sinusoids(5, D)
    masks = {"src_key_padding_mask": is_padding, "memory_key_padding_mask": is_padding, "tgt_is_causal": True}
    expected = reference(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), **masks)
    torch.testing.assert_close(model.features(source, target, source_pos), expected, rtol=0, atol=1e-5)
    logits = model(source, target, source_pos)
    torch.testing.assert_close(logits, expected @ model.head.weight.T, rtol=0, atol=1e-5)


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize("tying", ["all", "target", "inputs", "none"])
def test_tied_embeddings_share_storage(tying):
    config = ModelConfig(vocab_size=V, d_model=8, n_heads=2, n_layers=1, tie_embeddings=tying)
    original, loaded_model, trained_model = (build(config, seed=seed) for seed in (0, 1, 0))
    assert all(torch.equal(x, trained_model.state_dict()[name]) for name, x in original.state_dict().items())
    loaded_model.load_state_dict(original.state_dict())
    tokens = torch.randint(0, V, (2, 4))
    trained_model(tokens, tokens).logsumexp(-1).sum().backward()
    torch.optim.SGD(trained_model.parameters(), 0.1).step()
    moved_model = build(config).to(torch.float64)
    for model in (original, loaded_model, copy.deepcopy(original), moved_model, trained_model):
        weights = [e.token.weight for e in (model.encoder_embedding, model.decoder_embedding)]
        weights.append(model.head.weight)
        n_distinct = len({w.data_ptr() for w in weights})
        assert n_distinct == {"all": 1, "target": 2, "inputs": 2, "none": 3}[tying]
        assert torch.equal(weights[1], weights[2]) == (tying in ("all", "target"))
        assert torch.equal(weights[0], weights[1]) == (tying in ("all", "inputs"))
        names = [n for n, _ in model.named_parameters() if n.endswith(("token.weight", "head.weight"))]
        assert len(names) == n_distinct and model.cache_shape.dtype == weights[0].dtype


def test_cross_attention_reads_encoder_output_without_positions():
    config = ModelConfig(vocab_size=V, d_model=16, n_heads=2, n_layers=2, position="rope")
    model, source = build(config, seed=0).eval(), torch.randint(0, V, (1, 5))
    output, memory = model.encoder(model.encoder_embedding(source)), model.encode(source)
    assert len(memory) == 2
    for layer, kv in zip(model.decoder.layers, memory, strict=True):
        torch.testing.assert_close(kv.k.transpose(1, 2).flatten(2), layer.cross.k_proj(output))
        torch.testing.assert_close(kv.v.transpose(1, 2).flatten(2), layer.cross.v_proj(output))


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("limit", [31, 32])
def test_outputs_may_reach_max_len(limit):
    sizes = {"vocab_size": V, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 32}
    model = build(ModelConfig(position="learned", **sizes), seed=0).eval()
    source = torch.tensor([[5, 6, 7, 2]])
    limits = {"max_new_tokens": [limit], "min_new_tokens": limit}
    ((best,),) = beam_search(model, source, None, bos_id=1, eos_id=2, beam_size=2, **limits)
    assert len(best.tokens) == limit
