"""Tests of cache/policies.py."""

import itertools

from polyhead import Choice, ModelConfig, build
from polyhead.cache.policies import make_window_choice, select_policies


def make_shape(**parts):
    sizes = {"vocab_size": 9, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 64}
    return build(ModelConfig(**{"kind": "decoder", "position": "rope", **sizes, **parts}), seed=1).cache_shape


def test_recurrent_model_has_one_policy():
    shape = make_shape(attention="linear", position="none")
    selected_policies, refusals = select_policies(shape, 64, None)
    assert ([p.choice.name for p in selected_policies], refusals) == (["state"], {})


def test_budgets_are_fractions_of_the_length():
    selected_policies, refusals = select_policies(make_shape(), 64, None)
    assert not refusals
    options = {p.name: p.choice.options for p in selected_policies}
    assert options["h2o 1/4"] == {"budget": 16, "recent": 8, "sink": 0}
    assert options["window+sink 1/8"] == {"window": 6, "sink": 2}
    assert options["window 1/8"] == {"window": 8, "sink": 0}
    assert make_window_choice(32, True) == Choice("window", window=28, sink=4)
    assert make_window_choice(3, True) == Choice("window", window=3, sink=0)
    _, refusals = select_policies(make_shape(position="alibi"), 64, None)
    assert options["subgen sampled 1/4"] == options["subgen 1/4"] | {"values": "sampled"}
    kinds = itertools.product(("subgen", "subgen sampled"), ("1/2", "1/4", "1/8"))
    assert set(refusals) == {" ".join(kind) for kind in kinds}
    assert all("alibi" in reason for reason in refusals.values())
