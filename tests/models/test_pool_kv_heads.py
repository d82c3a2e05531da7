"""Heads of keys and values as means of groups, against loops and against attention that repeats the means."""

from __future__ import annotations

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


def made(**design):
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
def test_each_new_head_is_the_mean_of_its_group_and_all_else_is_copied(n):
    model = made(v_head_dim=3)
    given, found = named_state(model), named_state(pool_kv_heads(model, n))
    assert given.keys() == found.keys()
    pooled = 0
    for name, new in found.items():
        if name.split(".")[-2] not in ("k_proj", "v_proj"):
            assert torch.equal(new, given[name])
            continue
        pooled += 1
        width, size = (4 if "k_proj" in name else 3), 6 // n
        for g in range(n):
            for row in range(width):
                total = sum(given[name][h * width + row] for h in range(g * size, (g + 1) * size))
                torch.testing.assert_close(new[g * width + row], total / size)
    assert pooled == 6 * 4  # six attentions, two weights and two biases each


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
def test_query_head_h_reads_the_mean_of_the_group_that_head_h_is_in(design, n):
    model = made(**design)
    converted = pool_kv_heads(model, n)
    assert converted.config.n_kv_heads == n
    assert not converted.training
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
    torch.testing.assert_close(logits(converted), logits(model), rtol=1e-4, atol=1e-4)


def test_heads_that_are_equal_in_their_group_lose_nothing_and_the_model_given_is_left_alone():
    model = made()
    before = {name: tensor.clone() for name, tensor in named_state(model).items()}
    with torch.no_grad():
        for name, weight in named_state(model).items():
            if "k_proj" in name or "v_proj" in name:
                weight.unflatten(0, (6, -1))[1::2] = weight.unflatten(0, (6, -1))[::2]
    same = {name: tensor.clone() for name, tensor in named_state(model).items()}
    torch.testing.assert_close(logits(pool_kv_heads(model, 3)), logits(model))
    assert all(torch.equal(same[name], tensor) for name, tensor in named_state(model).items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in same.items())


def test_the_copy_has_the_type_of_the_model_and_no_random_number_is_drawn():
    model = made().bfloat16()
    before = torch.get_rng_state()
    converted = pool_kv_heads(model, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert {p.dtype for p in converted.parameters()} == {torch.bfloat16}
    given = named_state(model)
    for name, new in named_state(converted).items():
        if name.endswith("k_proj.weight"):
            mean = given[name].double().view(2, 3, 4, 24).mean(1).view(8, 24)
            torch.testing.assert_close(new.double(), mean, rtol=2**-8, atol=0)


@pytest.mark.parametrize("design", [{}, {"attention": {"name": "softmax", "qk_norm": "per_head"}}], ids=str)
def test_groups_can_be_pooled_again(design):
    model = made(**design)
    twice, once = (
        named_state(m) for m in (pool_kv_heads(pool_kv_heads(model, 3), 1), pool_kv_heads(model, 1))
    )
    for name, tensor in once.items():
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
        pool_kv_heads(made(**design), n)


def test_what_each_head_has_for_itself_is_no_part_of_a_smaller_model(tmp_path, monkeypatch):
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
        pool_kv_heads(made(attention="own_heads:Loud"), 2)
