import pytest
import torch
import torch.nn.functional as F
from tests.nn.model_helpers import POS, TOKENS, make_encoder


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (None, lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("relu", torch.relu),
        ("silu", lambda x: x * torch.sigmoid(x)),
        ("tanh", torch.tanh),
    ],
)
def test_logits_of_an_encoder_pass_a_transform(name, function):
    changes = {} if name is None else {"head_transform_activation": name}
    model = make_encoder(lm_head_bias=True, **changes)
    h = function(model.transform(model.encoder(TOKENS, POS)))
    h = F.layer_norm(h, (8,), model.transform_norm.weight, model.transform_norm.bias)
    expected = h @ model.encoder.embedding.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, POS), expected, rtol=1e-4, atol=1e-5)


def test_head_without_transform_reads_the_encoder():
    model = make_encoder(head_transform_activation="none", lm_head_bias=True)
    expected = model.encoder(TOKENS, POS) @ model.encoder.embedding.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, POS), expected)
    assert model.transform is None
    assert not [name for name, _ in model.named_parameters() if "transform" in name]
