"""Tests of cache/policies.py."""

import itertools

from tests.lab.caches_helpers import model

from polyhead import Choice
from polyhead.cache.policies import make_window_choice, select_policies


def test_recurrent_model_has_one_policy():
    shape = model(attention="linear", position="none").cache_shape
    selected_policies, refusals = select_policies(shape, 64, None)
    assert ([p.choice.name for p in selected_policies], refusals) == (["state"], {})


def test_budgets_are_fractions_of_the_length():
    selected_policies, refusals = select_policies(model().cache_shape, 64, None)
    assert not refusals
    options = {p.name: p.choice.options for p in selected_policies}
    assert options["h2o 1/4"] == {"budget": 16, "recent": 8, "sink": 0}
    assert options["window+sink 1/8"] == {"window": 6, "sink": 2}
    assert options["window 1/8"] == {"window": 8, "sink": 0}
    assert make_window_choice(32, True) == Choice("window", window=28, sink=4)
    assert make_window_choice(3, True) == Choice("window", window=3, sink=0)
    _, refusals = select_policies(model(position="alibi").cache_shape, 64, None)
    assert options["subgen sampled 1/4"] == options["subgen 1/4"] | {"values": "sampled"}
    kinds = itertools.product(("subgen", "subgen sampled"), ("1/2", "1/4", "1/8"))
    assert set(refusals) == {" ".join(kind) for kind in kinds}
    assert all("alibi" in reason for reason in refusals.values())
