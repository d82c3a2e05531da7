"""Designs of the laws: every registered part, so that a new part is tested once it is registered."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any, NamedTuple

import pytest
import torch
from tests.sampling import CASE_PARTS
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import (
    ALL_REGISTRIES,
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    INIT,
    NORM,
    POSITION,
    Registry,
)
from polyhead.models import Seq2Seq, build
from polyhead.nn.norm import BatchNorm
from polyhead.nn.validate_model import check_model

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "softmax": [
        {"window": 2},
        {"window": 2, "sink": 1, "softcap": 2.0},
        {"qk_norm": True, "scale": 0.3, "bias": False},
        {"qk_norm": "all_heads"},
        {"qk_norm": "unweighted"},
        {"qk_norm": "per_head"},
        {"tie": "kv", "bias": "qkv"},
        {"bias": "o"},
    ],
    "linear": [
        {"feature_map": "square", "eps": 1.0},
        {"feature_map": "relu", "tie": "kv", "chunk": 2, "eps": 1.0},
    ],
    "kernel": [{"sim": "square", "tie": "kv", "eps": 1.0}],
    "rope": [
        {"theta": 100.0},
        {"layout": "interleaved", "fraction": 0.5},
        {"scaling": "yarn", "factor": 4.0, "original_len": 64, "theta": 100.0},
        {"scaling": "llama3", "factor": 4.0, "original_len": 64, "theta": 100.0},
    ],
    "learned": [{"offset": 2}],
    "sinusoidal": [{"layout": "halves", "endpoint": True, "offset": 2}],
    "rmsnorm": [{"zero_centered": True}, {"weight": False}],
    "t5": [{"buckets": 6, "max_distance": 5}],
    "disentangled": [
        {"span": 4, "max_distance": 7, "terms": "c2p"},
        {"span": 3, "max_distance": None, "terms": "p2c", "norm_eps": None},
    ],
    "shaw": [{"clip": 2}, {"clip": 3, "values": False}],
    "prelu": [{"per_channel": True}],
    "swiglu": [{"beta": 2.0}, {"beta": "learned"}],
    "rnn": [{"attention": False, "units": 24}],
    "lstm": [{"attention": False}, {"bidirectional": False, "units": 10}],
    "gru": [{"attention": False, "units": 24}],
    "gated_conv": [{"kernel": 5}],
}
"""Options that change what a part computes."""

HYBRIDS: list[list[dict[str, Any]]] = [
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


def choices(registry: Registry[Any]) -> list[dict[str, Any]]:
    """Every part of a registry, without options and in each variant."""
    return [
        {"name": name, **options} for name in registry.names() for options in ({}, *VARIANTS.get(name, []))
    ]


def make_cases() -> dict[str, dict[str, Any]]:
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
        {"attention": {"name": "softmax", "tie": "qkv"}, "position": {"name": "rope"}},
    ]
    cases += [
        {"decoder_attention": a, "cross_attention": c, "position": {"name": "none"}}
        for a, c in zip(choices(ATTENTION), reversed(choices(ATTENTION)), strict=True)
    ]
    cases += [
        {"layer_pattern": pattern, "n_layers": 4, "n_kv_heads": heads, "position": {"name": position}}
        for pattern, heads, position in zip(
            HYBRIDS, HEADS.values(), ("rope", "none", "sinusoidal"), strict=True
        )
    ]
    return {"-".join(map(format_id, case.values())): case for case in cases}


SIZES = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_len": 16, "dropout": 0.1}


def required_options(case: dict[str, Any]) -> dict[str, Any]:
    """Parallel blocks require norm_first."""
    return {"norm_first": True} if {"name": "parallel"} in case.values() else {}


def is_valid(case: dict[str, Any]) -> bool:
    try:
        check_model(ModelConfig(vocab_size=VOCAB, **{**SIZES, **case}))
    except UserError:
        return False
    return True


def format_id(value: Any) -> str:
    if isinstance(value, dict):
        return "_".join([value["name"], *(f"{k}={v}" for k, v in value.items() if k != "name")])
    if isinstance(value, list):
        return "+".join(format_id(next(iter(layer.values()), "own")) for layer in value)
    if isinstance(value, bool):
        return "pre" if value else "post"
    return str(value)


CASES = make_cases()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(CASES), scope="session")


@functools.cache
def registered_names() -> re.Pattern[str]:
    names = sorted({name for registry in ALL_REGISTRIES for name in registry.names()}, key=len, reverse=True)
    return re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, names))})(?![a-z0-9])")


def find_parts(value: Any, key: str = "") -> set[str]:
    """The registered parts in a parameter of a test, such as "norm rmsnorm"."""
    if isinstance(value, dict):
        return set().union(
            *(find_parts(part, key if name == "name" else name) for name, part in value.items())
        )
    if isinstance(value, list | tuple):
        return set().union(*(find_parts(part, key) for part in value))
    if isinstance(value, Choice):
        return find_parts(value.name, key)
    if isinstance(value, str):
        return (
            find_parts(CASES[value])
            if key == "case"
            else {f"{key} {n}" for n in registered_names().findall(value)}
        )
    return set()


def pytest_itemcollected(item: pytest.Item) -> None:
    if callspec := getattr(item, "callspec", None):
        item.stash[CASE_PARTS] = frozenset(find_parts(callspec.params))


def perturb(model: nn.Module, std: float, shrink: bool = False) -> None:
    """Change every parameter, so that no bias is 0 and no gain 1 and each has an effect.

    ``shrink`` is for models without norms, in which gated layers square the numbers of the layer before.
    """
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(std * torch.randn_like(p))
            if shrink:
                p.mul_(0.5)


def fit_running_statistics(model: nn.Module, *tokens: Tensor) -> None:
    """Set the running statistics of batch norms to those of one batch."""
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        if norms:
            model.train()(*tokens)


@functools.cache
def build_model(case: str) -> Seq2Seq:
    model = build(ModelConfig(vocab_size=VOCAB, **{**SIZES, **CASES[case]}), seed=1)
    perturb(model, 0.1, shrink=model.config.norm.name == "none")
    fit_running_statistics(model, *torch.randint(5, VOCAB, (2, 16, 9)))
    return model.eval()


@pytest.fixture
def config(case: str) -> ModelConfig:
    return build_model(case).config


@pytest.fixture
def model(case: str) -> Seq2Seq:
    """In evaluation mode; a test that changes it takes a copy."""
    return build_model(case)


class Pairs(NamedTuple):
    """A batch of ragged rows, padding on the right."""

    source: Tensor
    target: Tensor
    source_pos: Tensor
    target_pos: Tensor


def ragged_positions(*lengths: int) -> Tensor:
    """Positions of rows of these lengths, padded on the right: (B, T)."""
    pos = torch.arange(max(lengths)).expand(len(lengths), -1)
    return pos.masked_fill(pos >= torch.tensor(lengths)[:, None], -1)


@pytest.fixture
def pairs() -> Pairs:
    torch.manual_seed(3)

    source, target = torch.randint(5, VOCAB, (3, 7)), torch.randint(5, VOCAB, (3, 9))
    return Pairs(source, target, ragged_positions(7, 4, 1), ragged_positions(9, 1, 6))
