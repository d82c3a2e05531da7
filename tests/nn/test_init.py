"""Initial weights: their spread by part, whatever a model is made of."""

import pytest
import torch
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.models import build

SIZES = {"vocab_size": 400, "d_model": 96, "n_heads": 4, "n_layers": 2, "d_ff": 160, "max_len": 200}
TYING = ["all", "target", "none"]


def linears(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def tables(model):
    """Embeddings, learned positions and head."""
    names = ("token.weight", "position.weight", "head.weight")
    return {n: p for n, p in model.named_parameters(remove_duplicate=False) if n.endswith(names)}


@pytest.mark.parametrize("tying", TYING)
@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_xavier_is_uniform_within_its_bound_and_embeddings_are_normal(tying, gain):
    init = {"name": "xavier", "gain": gain}
    model = build(ModelConfig(**SIZES, init=init, tie_embeddings=tying, position="learned"), seed=0)
    for name, linear in linears(model).items():
        bound = gain * (6 / (linear.in_features + linear.out_features)) ** 0.5
        assert linear.weight.abs().max() <= bound, name
        assert linear.weight.abs().max() > 0.99 * bound, name
        assert float(linear.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.03), name
        assert (linear.bias == 0).all(), name
    for name, weight in tables(model).items():
        assert float(weight.detach().std()) == pytest.approx(96**-0.5, rel=0.03), name
        assert abs(float(weight.detach().mean())) < 0.005, name


def test_embeddings_of_a_width_of_their_own_have_the_spread_of_that_width():
    sizes = SIZES | {"kind": "encoder", "d_embedding": 24, "tie_embeddings": "none", "position": "learned"}
    for name, weight in tables(build(ModelConfig(**sizes), seed=0)).items():
        assert float(weight.detach().std()) == pytest.approx(24**-0.5, rel=0.03), name


@pytest.mark.parametrize("tying", TYING)
def test_normal_has_one_spread_everywhere_but_on_the_way_into_the_stream(tying):
    init = {"name": "normal", "std": 0.05}
    model = build(ModelConfig(**SIZES, init=init, tie_embeddings=tying, position="learned"), seed=0)
    for name, linear in linears(model).items():
        into_stream = name.endswith(("o_proj", "down_proj"))
        wanted = 0.05 / (2 * 2) ** 0.5 if into_stream else 0.05
        assert float(linear.weight.detach().std()) == pytest.approx(wanted, rel=0.03), name
        assert (linear.bias == 0).all(), name
    for name, weight in tables(model).items():
        assert float(weight.detach().std()) == pytest.approx(0.05, rel=0.03), name


@pytest.mark.parametrize(
    ("changes", "depths"),
    [
        ({"n_layers": 8, "n_decoder_layers": 2}, {"encoder.": 8, "decoder.": 2}),
        ({"kind": "encoder", "n_layers": 8, "generator_layers": 2}, {"encoder.": 8, "generator.": 2}),
        ({"kind": "decoder", "n_layers": 4, "share_layers": True}, {"stack.": 4}),
    ],
    ids=["decoder", "generator", "shared"],
)
def test_the_way_into_the_stream_is_as_narrow_as_its_own_stack_is_deep(changes, depths):
    model = build(ModelConfig(**SIZES | changes, init={"name": "normal", "std": 0.05}), seed=0)
    for start, depth in depths.items():
        into = [w for n, w in model.named_parameters() if n.startswith(start) and n.endswith("o_proj.weight")]
        assert into
        for weight in into:
            assert float(weight.detach().std()) == pytest.approx(0.05 / (2 * depth) ** 0.5, rel=0.03)


def test_norms_begin_as_norms_alone():
    model = build(ModelConfig(**SIZES, norm_first=True), seed=0)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 3 + 2
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()


@pytest.mark.parametrize("name", ["xavier", "normal"])
def test_the_loss_of_a_fresh_model_is_near_that_of_a_guess(name):
    """exp(loss) near the size of the vocabulary: no logit is loud at the start."""
    model = build(ModelConfig(**SIZES, init=name), seed=0).eval()
    tokens = torch.randint(0, 400, (4, 12))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(tokens, tokens).flatten(0, 1), torch.randint(0, 400, (48,)))
    assert torch.tensor(400.0).log() - 0.3 < loss < torch.tensor(400.0).log() + 2
