import re

import pytest
import torch
from torch import nn

from polyhead import ModelConfig, build

SIZES = {"vocab_size": 400, "d_model": 96, "n_heads": 4, "n_layers": 2, "d_ff": 160, "max_len": 200}
TYING = ["all", "target", "none"]


def build_model(**changes):
    return build(ModelConfig(**SIZES | changes), seed=0)


def find_tables(model):
    names = ("token.weight", "position.weight", "head.weight")
    return {n: p for n, p in model.named_parameters(remove_duplicate=False) if n.endswith(names)}


def assert_std(weight, std, name=""):
    assert float(weight.detach().std()) == pytest.approx(std, rel=0.03), name


@pytest.mark.parametrize("tying", TYING)
@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_xavier_is_uniform_and_embeddings_are_normal(tying, gain):
    model = build_model(init={"name": "xavier", "gain": gain}, tie_embeddings=tying, position="learned")
    for name, linear in model.named_modules():
        if not isinstance(linear, nn.Linear):
            continue
        bound = gain * (6 / (linear.in_features + linear.out_features)) ** 0.5
        assert 0.99 * bound < linear.weight.abs().max() <= bound, name
        assert_std(linear.weight, bound / 3**0.5, name)
        assert (linear.bias == 0).all(), name
    for name, weight in find_tables(model).items():
        assert_std(weight, 96**-0.5, name)
        assert abs(float(weight.detach().mean())) < 0.005, name


def test_factorized_embeddings_and_norms():
    model = build_model(kind="encoder", d_embedding=24, tie_embeddings="none", position="learned")
    for name, weight in find_tables(model).items():
        assert_std(weight, 24**-0.5, name)
    norms = [module for module in build_model(norm_first=True).modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 3 + 2
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.parametrize("tying", TYING)
def test_normal_has_one_std_except_before_residuals(tying):
    model = build_model(init={"name": "normal", "std": 0.05}, tie_embeddings=tying, position="learned")
    for name, linear in model.named_modules():
        if not isinstance(linear, nn.Linear):
            continue
        assert_std(linear.weight, 0.05 / (2 if name.endswith(("o_proj", "down_proj")) else 1), name)
        assert (linear.bias == 0).all(), name
    for name, weight in find_tables(model).items():
        assert_std(weight, 0.05, name)


DEPTHS = [({"n_layers": 8, "n_decoder_layers": 2}, {"encoder.": 8, "decoder.": 2})]
DEPTHS += [({"kind": "encoder", "n_layers": 8, "generator_layers": 2}, {"encoder.": 8, "generator.": 2})]
DEPTHS += [({"kind": "decoder", "n_layers": 4, "share_layers": True}, {"stack.": 4})]


@pytest.mark.parametrize(("changes", "depths"), DEPTHS, ids=str)
def test_std_before_residuals_depends_on_depth(changes, depths):
    model = build_model(init={"name": "normal", "std": 0.05}, **changes)
    for start, depth in depths.items():
        weights = [p for n, p in model.named_parameters() if re.match(rf"{start}.*o_proj\.weight", n)]
        assert weights
        for weight in weights:
            assert_std(weight, 0.05 / (2 * depth) ** 0.5)


@pytest.mark.parametrize("name", ["xavier", "normal"])
def test_initial_loss_is_near_a_uniform_guess(name):
    model, tokens = build_model(init=name).eval(), torch.randint(0, 400, (4, 12))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(tokens, tokens).flatten(0, 1), torch.randint(0, 400, (48,)))
    assert -0.3 < loss - torch.tensor(400.0).log() < 2
