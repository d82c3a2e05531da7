import pytest
import torch
import torch.nn.functional as F
from tests.nn.model_helpers import POS, TOKENS, make_encoder

NAMES = ["first", "mean", "max", "last"]


@pytest.mark.parametrize("bias", [True, False])
def test_map_first_pools_mapped_tokens(bias):
    pooling = {"name": "mean", "activation": "gelu", "map_first": True}
    model = make_encoder(pooling=pooling, head_transform_bias=bias, labels=["a", "b"])
    h = F.gelu(model.pooler.proj(model.encoder(TOKENS, POS)))
    means = torch.stack([row[pos >= 0].mean(0) for row, pos in zip(h, POS, strict=True)])
    torch.testing.assert_close(model(TOKENS, POS), model.classifier(means))


@pytest.mark.parametrize("activation", ["none", "tanh", "relu", "gelu"])
@pytest.mark.parametrize("name", NAMES)
def test_classes_are_scored_from_the_pooled_vector(name, activation):
    model = make_encoder(labels=["x", "y", "z"], pooling={"name": name, "activation": activation})
    function = {"none": lambda x: x, "tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}[activation]
    logits = model(TOKENS, POS)
    assert logits.shape == (2, 3)
    for row, length in ((0, 5), (1, 3)):
        x = model.encoder(TOKENS[row : row + 1, :length])[0]
        vector = {"first": x[0], "mean": x.mean(0), "max": x.max(0).values, "last": x[-1]}[name]
        if activation != "none":
            vector = function(model.pooler.proj.weight @ vector + model.pooler.proj.bias)
        expected = model.classifier.weight @ vector + model.classifier.bias
        torch.testing.assert_close(logits[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_padding_has_no_effect(name):
    """A row of padding is the batch of a rank without rows."""
    model = make_encoder(labels=["x", "y"], pooling=name)
    tokens, pos = torch.tensor([[1, 1, 3, 6, 8]]), torch.tensor([[-1, -1, 0, 1, 2]])
    torch.testing.assert_close(model(tokens, pos), model(TOKENS[1:, :3]), rtol=1e-5, atol=1e-6)
    pooling, results = {"name": name, "activation": "tanh", "norm": True}, []
    for n in (2, 3):
        model = make_encoder(pooling=pooling, labels=["x", "y"], norm="batchnorm").train()
        tokens, pos = torch.cat([TOKENS, TOKENS[:1]])[:n], torch.cat([POS, torch.full((1, 5), -1)])[:n]
        logits, norm = model(tokens, pos), model.pooler.norm
        results.append((logits[:2], norm.running_mean, norm.running_var))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)
