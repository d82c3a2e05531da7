import functools
import itertools
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.sampling import CASE_PARTS
from torch import Tensor

from polyhead import Choice, ModelConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import (
    ALL_REGISTRIES,
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    INIT,
    NORM,
    POSITION,
    RESIDUAL,
)
from polyhead.models import build
from polyhead.nn.norm import BatchNorm
from polyhead.nn.validate_model import check_model

VARIANTS = json.loads(Path(__file__).with_name("variants.json").read_text())
"""Options that change what a part computes."""

HYBRIDS = [
    [{"attention": {"name": "linear"}}, {}],
    [{"block": {"name": "rnn"}}, {}, {"block": {"name": "lstm"}}, {"block": {"name": "gru"}}],
    [
        {"attention": {"name": "softmax", "window": 2}},
        {"attention": {"name": "linear"}},
        {"block": {"name": "gated_conv"}},
    ],
]
"""Layer patterns that mix keys and values with recurrent states."""

HEADS = {"mha": 4, "gqa": 2, "mqa": 1}
VOCAB = 19


def choices(registry):
    return [{"name": name, **x} for name in registry.names() for x in ({}, *VARIANTS.get(name, []))]


def make_cases():
    """What differs from the base model, by a readable name.

    Attentions, positions and head counts form a full product, for they act on the same numbers; norms and
    feed-forward layers, which read one token at a time, take turns. Variants are combined with the other
    parts once, those of blocks only with themselves. Invalid designs are left out; test_refused.py lists
    them.
    """
    core = [
        {"attention": a, "position": p, "n_kv_heads": HEADS[heads]}
        for a, p, heads in itertools.product(choices(ATTENTION), choices(POSITION), HEADS)
        if len(a) + len(p) == 2 or (heads == "gqa" and 1 in (len(a), len(p)))
    ]
    core = [case for case in core if is_valid(case)]
    norms = [{"norm": n, "norm_first": pre} for n, pre in itertools.product(choices(NORM), (False, True))]
    ffns = [{"feed_forward": f} for f in choices(FEED_FORWARD)]
    turns = range(max(map(len, (core, norms, ffns))))
    cases = [core[i % len(core)] | norms[i % len(norms)] | ffns[i % len(ffns)] for i in turns]
    cases += [{"init": i, "tie_embeddings": "none"} for i in choices(INIT)]
    residuals = itertools.product(choices(RESIDUAL), (False, True))
    cases += [case for r, pre in residuals if is_valid(case := {"residual": r, "norm_first": pre})]
    cases += [{"block": {"name": "parallel"}, "residual": {"name": "none"}, "norm_first": True}]
    pairs = itertools.product(choices(BLOCK), repeat=2)
    blocks = [{"block": b, "decoder_block": d} for b, d in pairs if b == d or len(b) + len(d) == 2]
    blocks = [case | required_options(case) for case in blocks]
    cases += [case for case in blocks if is_valid(case)]
    sandwich = {"norm_first": True, "sandwich_norm": True}
    plain_blocks = (b for b in choices(BLOCK) if len(b) == 1)
    attentions, norm_names = itertools.cycle(ATTENTION.names()), itertools.cycle(NORM.names())
    cases += [
        {"block": b, "cross_attention": {"name": a}, "norm": {"name": n}} | sandwich
        for b, a, n in zip(plain_blocks, attentions, norm_names, strict=False)
        if b["name"] != "parallel"
    ]
    cases += [
        {"tie_embeddings": "target", "scale_embedding": False, "n_decoder_layers": 1},
        sandwich | {"head_dim": 6, "v_head_dim": 3},
        {"norm_first": True, "sandwich_norm": "after", "norm": {"name": "rmsnorm"}},
        *(
            {"encoder": {"d_model": 12, "n_heads": 2}, "tie_embeddings": "target", "block": {"name": block}}
            for block in ("transformer", "gru")
        ),
        {"head_transform": True, "head_transform_activation": "relu"},
        {"attention": {"name": "softmax", "tie": "qkv"}, "position": {"name": "rope"}},
        *(
            {"attention": {"name": name, "projections": "none"}, "position": {"name": position}}
            for name, position in (("softmax", "disentangled"), ("kernel", "rope"), ("linear", "sinusoidal"))
        ),
    ]
    cases += [
        {"decoder_attention": a, "cross_attention": c, "position": {"name": "none"}}
        for a, c in zip(choices(ATTENTION), reversed(choices(ATTENTION)), strict=True)
    ]
    hybrids = zip(HYBRIDS, HEADS.values(), ("rope", "none", "sinusoidal"), strict=True)
    cases += [
        {"layer_pattern": pattern, "n_layers": 4, "n_kv_heads": heads, "position": {"name": position}}
        for pattern, heads, position in hybrids
    ]
    return {"-".join(map(format_id, case.values())): case for case in cases}


SIZES = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_len": 16, "dropout": 0.1}


def required_options(case):
    return {"norm_first": True} if {"name": "parallel"} in case.values() else {}


def is_valid(case):
    try:
        check_model(ModelConfig(vocab_size=VOCAB, **{**SIZES, **case}))
    except UserError:
        return False
    return True


def format_id(value):
    if isinstance(value, dict):
        return "_".join([value.get("name", ""), *(f"{k}={v}" for k, v in value.items() if k != "name")])
    if isinstance(value, list):
        return "+".join(format_id(next(iter(layer.values()), "own")) for layer in value)
    if isinstance(value, bool):
        return "pre" if value else "post"
    return str(value)


CASES = make_cases()


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(CASES), scope="session")


@functools.cache
def registered_names():
    names = sorted({name for registry in ALL_REGISTRIES for name in registry.names()}, key=len, reverse=True)
    return re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, names))})(?![a-z0-9])")


def find_parts(value, key=""):
    if isinstance(value, dict):
        parts = (find_parts(part, key if name == "name" else name) for name, part in value.items())
        return set().union(*parts)
    if isinstance(value, list | tuple):
        return set().union(*(find_parts(part, key) for part in value))
    if isinstance(value, Choice):
        return find_parts(value.name, key)
    if isinstance(value, str) and key == "case":
        return find_parts(CASES[value])
    return {f"{key} {n}" for n in registered_names().findall(value)} if isinstance(value, str) else set()


def pytest_itemcollected(item):
    if callspec := getattr(item, "callspec", None):
        item.stash[CASE_PARTS] = frozenset(find_parts(callspec.params))


def perturb(model, std, shrink=False):
    """Change every parameter, so that no bias is 0 and no gain 1 and each has an effect.

    ``shrink`` is for models without norms, in which gated layers square the numbers of the layer before.
    """
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(std * torch.randn_like(p))
            if shrink:
                p.mul_(0.5)


def fit_running_statistics(model, *tokens):
    for norm in (module for module in model.modules() if isinstance(module, BatchNorm)):
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(*tokens)


@functools.cache
def build_model(case):
    model = build(ModelConfig(vocab_size=VOCAB, **{**SIZES, **CASES[case]}), seed=1)
    perturb(model, 0.1, shrink=model.config.norm.name == "none")
    fit_running_statistics(model, *torch.randint(5, VOCAB, (2, 16, 9)))
    return model.eval()


@pytest.fixture
def config(case):
    return build_model(case).config


@pytest.fixture
def model(case):
    """In evaluation mode; a test that changes it takes a copy."""
    return build_model(case)


class Pairs(NamedTuple):
    source: Tensor
    target: Tensor
    source_pos: Tensor
    target_pos: Tensor


def ragged_positions(*lengths):
    pos = torch.arange(max(lengths)).expand(len(lengths), -1)
    return pos.masked_fill(pos >= torch.tensor(lengths)[:, None], -1)


@pytest.fixture
def pairs():
    torch.manual_seed(3)

    source, target = torch.randint(5, VOCAB, (3, 7)), torch.randint(5, VOCAB, (3, 9))
    return Pairs(source, target, ragged_positions(7, 4, 1), ragged_positions(9, 1, 6))
