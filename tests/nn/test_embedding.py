import pytest
import torch
from torch import nn

from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.models import build
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding
from polyhead.nn.position.absolute import SinusoidalPosition


def test_scaled_vectors_and_positions_are_added_before_dropout():
    """E[token] sqrt(d_model) + p, with dropout on the sum (Vaswani et al., 2017, sec. 3.4, 3.5, 5.4)."""
    table, position = nn.Embedding(7, 4), SinusoidalPosition(AttentionShape.from_sizes(4, 1))
    tokens, pos = torch.tensor([[3, 1, 3]]), torch.tensor([[0, 5, 2]])
    expected = table.weight[tokens] * 2.0 + position.table[pos]
    torch.testing.assert_close(Embedding(table, position, 2.0, 0.0)(tokens, pos), expected)
    torch.manual_seed(0)
    embedding = Embedding(nn.Embedding(7, 64), SinusoidalPosition(AttentionShape.from_sizes(64, 1)), 8.0, 0.5)
    tokens = torch.randint(0, 7, (4, 9))
    plain = embedding.eval()(tokens)
    output = embedding.train()(tokens)
    is_dropped = output == 0
    assert 0.4 < is_dropped.float().mean() < 0.6
    torch.testing.assert_close(output[~is_dropped], 2 * plain[~is_dropped])


@pytest.mark.parametrize("norm_first", [False, True])
def test_model_has_dropout_where_the_paper_does(norm_first):
    sizes = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 2, "dropout": 0.3}
    model = build(ModelConfig(**sizes, norm_first=norm_first), seed=1)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, Dropout) and m.p}
    parts = [("encoder", "attn"), ("encoder", "ffn"), *(("decoder", s) for s in ("attn", "cross", "ffn"))]
    sublayers = [f"{side}.layers.{i}.{s}_residual.dropout" for side, s in parts for i in range(2)]
    assert rates == dict.fromkeys(["encoder_embedding.dropout", "decoder_embedding.dropout", *sublayers], 0.3)
    assert all(m.dropout == 0 for name, m in model.named_modules() if name.endswith((".attn", ".cross")))
