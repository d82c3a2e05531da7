"""Tests of cache/policies.py."""

from __future__ import annotations

import itertools

from tests.lab.caches_helpers import model

from polyhead import Choice
from polyhead.cache.policies import make_window_choice, select_policies


def test_a_model_that_keeps_a_state_has_one_cache():
    shape = model(attention="linear", position="none").cache_shape
    chosen, refused = select_policies(shape, 64, None)
    assert ([p.choice.name for p in chosen], refused) == (["state"], {})


def test_budgets_are_shares_of_the_length_and_what_is_refused_is_told():
    chosen, refused = select_policies(model().cache_shape, 64, None)
    assert not refused
    options = {p.name: p.choice.options for p in chosen}
    assert options["h2o 1/4"] == {"budget": 16, "recent": 8, "sink": 0}
    assert options["window+sink 1/8"] == {"window": 6, "sink": 2}
    assert options["window 1/8"] == {"window": 8, "sink": 0}
    assert make_window_choice(32, True) == Choice("window", window=28, sink=4)
    assert make_window_choice(3, True) == Choice("window", window=3, sink=0)
    _, refused = select_policies(model(position="alibi").cache_shape, 64, None)
    assert options["subgen sampled 1/4"] == options["subgen 1/4"] | {"values": "sampled"}
    kinds = itertools.product(("subgen", "subgen sampled"), ("1/2", "1/4", "1/8"))
    assert set(refused) == {" ".join(kind) for kind in kinds}
    assert all("alibi" in why for why in refused.values())
