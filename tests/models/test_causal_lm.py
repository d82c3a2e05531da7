"""What a language model is made of, written out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polyhead.config.model import ModelConfig
from polyhead.models import build

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@torch.no_grad()
@pytest.mark.parametrize("tying", ["all", "none"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
@pytest.mark.parametrize("width", [6, 8, 10])
def test_narrow_embeddings_are_mapped_before_positions_and_back_before_the_scores(
    width: int, position: str, tying: str
) -> None:
    """As in the OPT of 350 M parameters (Zhang et al., 2022): neither map has a bias."""
    config = ModelConfig.model_validate(
        {
            "kind": "decoder", "vocab_size": 13, "d_model": 8, "d_embedding": width, "n_heads": 2,
            "n_layers": 2,
            "max_len": 16, "position": position, "embedding_norm": True, "tie_embeddings": tying,
        }
    )  # fmt: skip
    model = build(config, seed=3).eval()
    e = model.embedding
    x = (F.embedding(TOKENS, e.token.weight) * width**0.5) @ e.token_proj.weight.T
    if position != "rope":
        x = x + (e.position.weight if position == "learned" else e.position.table)[:5]
    x = F.layer_norm(x, (8,), e.norm.weight, e.norm.bias)
    torch.testing.assert_close(e(TOKENS), x)
    read = model.stack(x) @ model.out_proj.weight.T
    torch.testing.assert_close(model.features(TOKENS), read)
    assert model.head.weight.shape == (13, width) and (model.head.weight is e.token.weight) == (
        tying == "all"
    )
    torch.testing.assert_close(model(TOKENS), read @ model.head.weight.T, rtol=1e-4, atol=1e-5)
    assert model.encoder(TOKENS).shape == (2, 5, 8)
