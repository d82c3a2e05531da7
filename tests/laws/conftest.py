"""Every law is tested on every registered part, so a new part is covered the day it is born."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any, NamedTuple

import pytest
import torch
from tests.sampling import CASE_PARTS
from torch import Tensor

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
from polyhead.nn.validate_model import check_model

NEEDS: dict[str, dict[str, Any]] = {}
"""Options that a part cannot do without: its name -> an example of them."""

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
"""Options that change what a part does and are worth the laws of their own."""

HYBRIDS: list[list[dict[str, Any]]] = [
    [{"attention": {"name": "linear"}}, {}],
    [{"block": {"name": "rnn"}}, {}, {"block": {"name": "lstm"}}, {"block": {"name": "gru"}}],
    [
        {"attention": {"name": "softmax", "window": 2}},
        {"attention": {"name": "linear"}},
        {"block": {"name": "gated_conv"}},
    ],
]
"""Layers in turn that keep keys and values, and such that keep a state."""

HEADS = {"mha": 4, "gqa": 2, "mqa": 1}
VOCAB = 19


def choices(registry: Registry[Any]) -> list[dict[str, Any]]:
    """Every part of a registry, those with variants in all of them."""
    parts = []
    for name in registry.names():
        plain = {"name": name, **NEEDS.get(name, {})}
        parts += [plain, *({**plain, **options} for options in VARIANTS.get(name, []))]
    return parts


def cases() -> dict[str, dict[str, Any]]:
    """What differs from the base model, by a readable name.

    Attentions, positions and head counts meet each other in full, for they act on the same numbers; norms and
    feed-forward layers, which see one token at a time, take turns. Variants meet the other parts once, those
    of blocks only themselves. Designs that are refused when the config is read are left out; test_refused.py
    has them by name.
    """
    core = [
        {"attention": a, "position": p, "n_kv_heads": HEADS[heads]}
        for a, p, heads in itertools.product(choices(ATTENTION), choices(POSITION), HEADS)
        if len(a) + len(p) == 2 or (heads == "gqa" and 1 in (len(a), len(p)))
    ]
    core = [case for case in core if possible(case)]
    norms = [{"norm": n, "norm_first": pre} for n, pre in itertools.product(choices(NORM), (False, True))]
    ffns = [{"feed_forward": f} for f in choices(FEED_FORWARD)]
    turns = range(max(map(len, (core, norms, ffns))))
    found = [core[i % len(core)] | norms[i % len(norms)] | ffns[i % len(ffns)] for i in turns]
    found += [{"init": i, "tie_embeddings": "none"} for i in choices(INIT)]
    pairs = itertools.product(choices(BLOCK), repeat=2)
    blocks = [{"block": b, "decoder_block": d} for b, d in pairs if b == d or len(b) + len(d) == 2]
    found += [case | first(case) for case in blocks if possible(case | first(case))]
    found += [
        {
            "block": b,
            "cross_attention": {"name": a},
            "norm": {"name": n},
            "norm_first": True,
            "sandwich_norm": True,
        }
        for b, a, n in zip(
            choices(BLOCK), itertools.cycle(ATTENTION.names()), itertools.cycle(NORM.names()), strict=False
        )
        if len(b) == 1 and b["name"] != "parallel"
    ]
    found += [{"tie_embeddings": "target", "scale_embedding": False, "n_decoder_layers": 1}]
    found += [{"norm_first": True, "sandwich_norm": True, "head_dim": 6, "v_head_dim": 3}]
    found += [{"norm_first": True, "sandwich_norm": "after", "norm": {"name": "rmsnorm"}}]
    found += [{"attention": {"name": "softmax", "tie": "qkv"}, "position": {"name": "rope"}}]
    found += [
        {"decoder_attention": a, "cross_attention": c, "position": {"name": "none"}}
        for a, c in zip(choices(ATTENTION), reversed(choices(ATTENTION)), strict=True)
    ]
    found += [
        {"layer_pattern": turns, "n_layers": 4, "n_kv_heads": heads, "position": {"name": position}}
        for turns, heads, position in zip(
            HYBRIDS, HEADS.values(), ("rope", "none", "sinusoidal"), strict=True
        )
    ]
    return {"-".join(map(say, case.values())): case for case in found}


SIZES = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_len": 16, "dropout": 0.1}


def first(case: dict[str, Any]) -> dict[str, Any]:
    """Some blocks have their norms first alone."""
    return {"norm_first": True} if {"name": "parallel"} in case.values() else {}


def possible(case: dict[str, Any]) -> bool:
    try:
        check_model(ModelConfig(vocab_size=VOCAB, **{**SIZES, **case}))
    except UserError:
        return False
    return True


def say(value: Any) -> str:
    if isinstance(value, dict):
        return "_".join([value["name"], *(f"{k}={v}" for k, v in value.items() if k != "name")])
    if isinstance(value, list):
        return "+".join(say(next(iter(turn.values()), "own")) for turn in value)
    if isinstance(value, bool):
        return "pre" if value else "post"
    return str(value)


CASES = cases()


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


@functools.cache
def made(case: str) -> Seq2Seq:
    model = build(ModelConfig(vocab_size=VOCAB, **{**SIZES, **CASES[case]}), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():  # no bias at 0, no gain at 1: nothing may hide
            p.add_(0.1 * torch.randn_like(p))
            if model.config.norm.name == "none":
                p.mul_(0.5)  # or gated layers square the numbers of the layer before, and rounding with them
        for _ in range(30):  # running statistics that fit
            model.train()(torch.randint(5, VOCAB, (4, 9)), torch.randint(5, VOCAB, (4, 9)))
    return model.eval()


@pytest.fixture
def config(case: str) -> ModelConfig:
    return made(case).config


@pytest.fixture
def model(case: str) -> Seq2Seq:
    """In evaluation mode; a test that changes it takes a copy."""
    return made(case)


class Pairs(NamedTuple):
    """A batch of ragged rows, padding on the right."""

    source: Tensor
    target: Tensor
    source_pos: Tensor
    target_pos: Tensor


@pytest.fixture
def pairs() -> Pairs:
    torch.manual_seed(3)

    def positions(*lengths: int) -> Tensor:
        at = torch.arange(max(lengths)).expand(len(lengths), -1)
        return at.masked_fill(at >= torch.tensor(lengths)[:, None], -1)

    source, target = torch.randint(5, VOCAB, (3, 7)), torch.randint(5, VOCAB, (3, 9))
    return Pairs(source, target, positions(7, 4, 1), positions(9, 1, 6))
