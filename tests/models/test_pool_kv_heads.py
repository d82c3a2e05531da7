from pathlib import Path

import pytest
import torch
import yaml
from tests.generation.helpers import perturb

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.models.pool_kv_heads import pool_kv_heads
from polyhead.nn.attention.projections import PerHeadLayerNorm
from polyhead.nn.state import named_state

SIZES = {"vocab_size": 19, "d_model": 24, "n_heads": 6, "n_layers": 2, "d_ff": 20, "max_len": 16}
PER_HEAD_NORM = {"attention": {"name": "softmax", "qk_norm": "per_head"}}


def make_model(**design):
    return perturb(build(ModelConfig.model_validate(SIZES | {"dropout": 0.0} | design), seed=0), 0.2)


@torch.no_grad()
def logits(model):
    torch.manual_seed(1)
    inputs = [torch.randint(5, 19, (2, 7)), torch.randint(5, 19, (2, 5))]
    return model(*inputs) if model.config.kind == "encoder-decoder" else model(inputs[0])


def copy_state(model):
    return {name: tensor.clone() for name, tensor in named_state(model).items()}


def is_kv(name):
    return "k_proj" in name or "v_proj" in name


@pytest.mark.parametrize("n", [1, 2, 3])
def test_new_heads_are_means_of_their_groups(n):
    model = make_model(v_head_dim=3)
    original, result, n_pooled = named_state(model), named_state(pool_kv_heads(model, n)), 0
    assert original.keys() == result.keys()
    for name, new in result.items():
        if not is_kv(name):
            assert torch.equal(new, original[name])
            continue
        n_pooled += 1
        width, size = (4 if "k_proj" in name else 3), 6 // n
        for g in range(n):
            for row in range(width):
                total = sum(original[name][h * width + row] for h in range(g * size, (g + 1) * size))
                torch.testing.assert_close(new[g * width + row], total / size)
    assert n_pooled == 6 * 4  # six attentions, two weights and two biases each


ROWS = yaml.safe_load((Path(__file__).parent / "pool_kv_heads.yaml").read_text())


@pytest.mark.parametrize(("design", "n"), ROWS["designs"], ids=str)
def test_query_heads_read_the_mean_of_their_group(design, n):
    """Compared with a model of six heads, in which each head of a group has the mean of the group."""
    model = make_model(**design)
    state, result = copy_state(model), pool_kv_heads(model, n)
    assert all(torch.equal(state[name], tensor) for name, tensor in named_state(model).items())
    assert result.config.n_kv_heads == n and not result.training
    groups = [[other for other in range(6) if other // (6 // n) == h // (6 // n)] for h in range(6)]
    with torch.no_grad():
        for name, weight in named_state(model).items():
            if is_kv(name):
                heads = weight.unflatten(0, (6, -1))
                heads.copy_(torch.stack([heads[group].mean(0) for group in groups]))
        for attn in model.modules():
            if isinstance(getattr(attn, "k_norm", None), PerHeadLayerNorm):
                factors = [factor.clone() for factor in attn.k_norm.heads]
                for h, group in enumerate(groups):
                    attn.k_norm.heads[h].copy_(sum(factors[other] for other in group) / len(group))
    torch.testing.assert_close(logits(result), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("design", [{}, PER_HEAD_NORM], ids=str)
def test_groups_can_be_pooled_again(design):
    model = make_model(**design)
    pooled_twice = named_state(pool_kv_heads(pool_kv_heads(model, 3), 1))
    torch.testing.assert_close(pooled_twice, named_state(pool_kv_heads(model, 1)))


def test_pooling_keeps_dtype_and_random_state():
    model, rng_state = make_model().bfloat16(), torch.get_rng_state()
    result = pool_kv_heads(model, 2)
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert {p.dtype for p in result.parameters()} == {torch.bfloat16}
    original = named_state(model)
    for name, new in named_state(result).items():
        if name.endswith("k_proj.weight"):
            mean = original[name].double().view(2, 3, 4, 24).mean(1).view(8, 24)
            torch.testing.assert_close(new.double(), mean, rtol=2**-8, atol=0)


NOT_POOLED = "depends on n_kv_heads but is not a key or value projection"


@pytest.mark.parametrize(("design", "n", "message"), ROWS["refused"], ids=str)
def test_unsupported_designs_are_refused(design, n, message):
    with pytest.raises(UserError, match=message):
        pool_kv_heads(make_model(**design), n)


def test_per_head_parameters_are_refused(tmp_path, monkeypatch):
    """An attention of the user's own, whose parameters depend on the heads only by their names."""
    (tmp_path / "own_heads.py").write_text(
        "from torch import nn\n"
        "import torch\n"
        "from polyhead.nn.attention.softmax import Attention\n"
        "class Loud(Attention):\n"
        "    def __init__(self, shape, position):\n"
        "        super().__init__(shape, position)\n"
        "        self.loud = nn.ParameterList(torch.ones(3) for _ in range(shape.n_kv_heads))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"attn\.loud\.2 {NOT_POOLED}"):
        pool_kv_heads(make_model(attention="own_heads:Loud"), 2)
