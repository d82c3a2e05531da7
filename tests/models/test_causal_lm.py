import pytest
import torch
import torch.nn.functional as F

from polyhead.config.model import ModelConfig
from polyhead.models import build

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@torch.no_grad()
@pytest.mark.parametrize("tying", ["all", "none"])
@pytest.mark.parametrize(("position", "width"), [("learned", 6), ("sinusoidal", 8), ("rope", 10)])
def test_d_embedding_projections_surround_the_stack(width, position, tying):
    """As in the OPT of 350 M parameters (Zhang et al., 2022): no projection has a bias."""
    sizes = {"vocab_size": 13, "d_model": 8, "d_embedding": width, "n_heads": 2, "n_layers": 2, "max_len": 16}
    parts = {"position": position, "embedding_norm": True, "tie_embeddings": tying}
    model = build(ModelConfig(kind="decoder", **sizes, **parts), seed=3).eval()
    e = model.embedding
    x = (F.embedding(TOKENS, e.token.weight) * width**0.5) @ e.token_proj.weight.T
    if position != "rope":
        x = x + (e.position.weight if position == "learned" else e.position.table)[:5]
    x = F.layer_norm(x, (8,), e.norm.weight, e.norm.bias)
    torch.testing.assert_close(e(TOKENS), x)
    features, weight = model.stack(x) @ model.out_proj.weight.T, model.head.weight
    torch.testing.assert_close(model.features(TOKENS), features)
    assert weight.shape == (13, width) and (weight is e.token.weight) == (tying == "all")
    torch.testing.assert_close(model(TOKENS), features @ weight.T, rtol=1e-4, atol=1e-5)
    assert model.encoder(TOKENS).shape == (2, 5, 8)
