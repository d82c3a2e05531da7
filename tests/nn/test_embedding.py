"""Embeddings: what is scaled, what is added, and what dropout falls on."""

import pytest
import torch
from torch import nn

from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.models import build
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding
from polyhead.nn.position.sinusoidal import SinusoidalPosition


def test_vectors_are_scaled_before_positions_are_added():
    """E[token] sqrt(d_model) + p (Vaswani et al., 2017, sec. 3.4 and 3.5)."""
    torch.manual_seed(0)
    table, position = nn.Embedding(7, 4), SinusoidalPosition(AttentionShape.from_sizes(4, 1))
    tokens, pos = torch.tensor([[3, 1, 3]]), torch.tensor([[0, 5, 2]])
    out = Embedding(table, position, 2.0, 0.0)(tokens, pos)
    for t in range(3):
        wanted = table.weight[tokens[0, t]] * 2.0 + position.table[pos[0, t]]
        torch.testing.assert_close(out[0, t], wanted)


def test_dropout_falls_on_the_sum_of_embedding_and_position_in_training_alone():
    """Sec. 5.4: on "the sums of the embeddings and the positional encodings"."""
    torch.manual_seed(0)
    embedding = Embedding(nn.Embedding(7, 64), SinusoidalPosition(AttentionShape.from_sizes(64, 1)), 8.0, 0.5)
    tokens = torch.randint(0, 7, (4, 9))
    whole = embedding.eval()(tokens)
    dropped = embedding.train()(tokens)
    gone = dropped == 0
    assert 0.4 < gone.float().mean() < 0.6
    torch.testing.assert_close(dropped[~gone], 2 * whole[~gone])


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_model_drops_where_the_paper_does(norm_first):
    """On the sums of both embeddings and on the output of every sub-layer, at one rate; nowhere else unless
    asked.
    """
    model = build(
        ModelConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=2, dropout=0.3, norm_first=norm_first),
        seed=1,
    )
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, Dropout) and m.p}
    sublayers = [f"encoder.layers.{i}.{s}_residual.dropout" for i in range(2) for s in ("attn", "ffn")]
    sublayers += [
        f"decoder.layers.{i}.{s}_residual.dropout" for i in range(2) for s in ("attn", "cross", "ffn")
    ]
    assert rates == dict.fromkeys(["encoder_embedding.dropout", "decoder_embedding.dropout", *sublayers], 0.3)
    assert all(m.dropout == 0 for name, m in model.named_modules() if name.endswith((".attn", ".cross")))
