"""Heads of keys and values as means of groups, against loops and against attention that repeats the means."""

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.models.pool_kv_heads import pool_kv_heads
from polyhead.nn.attention.projections import PerHeadLayerNorm
from polyhead.nn.state import named_state

SIZES = {
    "vocab_size": 19,
    "d_model": 24,
    "n_heads": 6,
    "n_layers": 2,
    "d_ff": 20,
    "max_len": 16,
    "dropout": 0.0,
}


def make_model(**design):
    model = build(ModelConfig.model_validate(SIZES | design), seed=0).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))  # biases and norms, too
    return model


def logits(model):
    torch.manual_seed(1)
    inputs = [torch.randint(5, 19, (2, 7)), torch.randint(5, 19, (2, 5))]
    with torch.no_grad():
        return model(*inputs) if model.config.kind == "encoder-decoder" else model(inputs[0])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_new_heads_are_means_of_their_groups(n):
    model = make_model(v_head_dim=3)
    original, pooled_state = named_state(model), named_state(pool_kv_heads(model, n))
    assert original.keys() == pooled_state.keys()
    n_pooled = 0
    for name, new in pooled_state.items():
        if name.split(".")[-2] not in ("k_proj", "v_proj"):
            assert torch.equal(new, original[name])
            continue
        n_pooled += 1
        width, size = (4 if "k_proj" in name else 3), 6 // n
        for g in range(n):
            for row in range(width):
                total = sum(original[name][h * width + row] for h in range(g * size, (g + 1) * size))
                torch.testing.assert_close(new[g * width + row], total / size)
    assert n_pooled == 6 * 4  # six attentions, two weights and two biases each


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "design",
    [
        {},
        {
            "position": "rope",
            "norm_first": True,
            "attention": {"name": "softmax", "qk_norm": True, "bias": False},
        },
        {"position": "rope", "attention": {"name": "softmax", "qk_norm": "per_head"}},
        {"attention": {"name": "softmax", "tie": "kv"}, "norm": "batchnorm"},
        {"kind": "decoder", "position": "none", "attention": "linear"},
        {"kind": "encoder", "position": "t5"},
    ],
    ids=str,
)
def test_query_heads_read_the_mean_of_their_group(design, n):
    model = make_model(**design)
    smaller = pool_kv_heads(model, n)
    assert smaller.config.n_kv_heads == n
    assert not smaller.training
    # the same means in a model that keeps six heads: each head of a group holds the group's mean
    with torch.no_grad():
        for name, weight in named_state(model).items():
            if "k_proj" in name or "v_proj" in name:
                heads = weight.unflatten(0, (6, -1)).clone()
                for h in range(6):
                    group = [other for other in range(6) if other // (6 // n) == h // (6 // n)]
                    weight.unflatten(0, (6, -1))[h] = heads[group].mean(0)
        for attn in model.modules():
            if not isinstance(getattr(attn, "k_norm", None), PerHeadLayerNorm):
                continue
            factors = [factor.clone() for factor in attn.k_norm.heads]
            for h in range(6):
                group = [factors[other] for other in range(6) if other // (6 // n) == h // (6 // n)]
                attn.k_norm.heads[h].copy_(sum(group) / len(group))
    torch.testing.assert_close(logits(smaller), logits(model), rtol=1e-4, atol=1e-4)


def test_equal_heads_pool_losslessly_into_a_copy():
    model = make_model()
    original = {name: tensor.clone() for name, tensor in named_state(model).items()}
    with torch.no_grad():
        for name, weight in named_state(model).items():
            if "k_proj" in name or "v_proj" in name:
                weight.unflatten(0, (6, -1))[1::2] = weight.unflatten(0, (6, -1))[::2]
    copies = {name: tensor.clone() for name, tensor in named_state(model).items()}
    torch.testing.assert_close(logits(pool_kv_heads(model, 3)), logits(model))
    assert all(torch.equal(copies[name], tensor) for name, tensor in named_state(model).items())
    assert any(not torch.equal(original[name], tensor) for name, tensor in copies.items())


def test_pooling_keeps_dtype_and_random_state():
    model = make_model().bfloat16()
    original = torch.get_rng_state()
    smaller = pool_kv_heads(model, 2)
    assert torch.equal(torch.get_rng_state(), original)
    assert {p.dtype for p in smaller.parameters()} == {torch.bfloat16}
    original = named_state(model)
    for name, new in named_state(smaller).items():
        if name.endswith("k_proj.weight"):
            mean = original[name].double().view(2, 3, 4, 24).mean(1).view(8, 24)
            torch.testing.assert_close(new.double(), mean, rtol=2**-8, atol=0)


@pytest.mark.parametrize("design", [{}, {"attention": {"name": "softmax", "qk_norm": "per_head"}}], ids=str)
def test_groups_can_be_pooled_again(design):
    model = make_model(**design)
    twice, direct = (
        named_state(m) for m in (pool_kv_heads(pool_kv_heads(model, 3), 1), pool_kv_heads(model, 1))
    )
    for name, tensor in direct.items():
        torch.testing.assert_close(twice[name], tensor)


@pytest.mark.parametrize(
    ("design", "n", "message"),
    [
        ({}, 4, r"n_kv_heads \(4\) must be less than 6 and divide it: one of 1, 2, 3"),
        ({}, 6, "one of 1, 2, 3"),
        ({}, 12, "one of 1, 2, 3"),
        ({}, 0, "one of 1, 2, 3"),
        ({"n_kv_heads": 1}, 1, "there is only one"),
        (
            {"attention": {"name": "softmax", "tie": "qk"}},
            2,
            "attention has tie=qk: queries and keys share one projection",
        ),
        ({"decoder_attention": {"name": "softmax", "tie": "qkv"}}, 2, "decoder_attention has tie=qkv"),
        (
            {"attention": {"name": "softmax", "qk_norm": "all_heads"}},
            2,
            r"attn\.k_norm\.weight depends on n_kv_heads but is not a key or value projection: its heads "
            r"cannot be averaged",
        ),
        ({"block": {"name": "lstm", "attention": False}}, 2, "no key/value heads to convert"),
    ],
    ids=str,
)
def test_what_cannot_be_pooled_is_refused(design, n, message):
    with pytest.raises(UserError, match=message):
        pool_kv_heads(make_model(**design), n)


def test_per_head_parameters_are_refused(tmp_path, monkeypatch):
    """As parameters of an attention of one's own may be: their names alone tell that heads are gone."""
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
    with pytest.raises(
        UserError, match=r"attn\.loud\.2 depends on n_kv_heads but is not a key or value projection"
    ):
        pool_kv_heads(make_model(attention="own_heads:Loud"), 2)
