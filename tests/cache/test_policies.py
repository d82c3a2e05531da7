import itertools

import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cache.low_rank import fit_low_rank
from polyhead.cache.policies import make_window_choice, select_policies


def make_model(**parts):
    sizes = {"vocab_size": 9, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 64}
    return build(ModelConfig(**{"kind": "decoder", "position": "rope", **sizes, **parts}), seed=1)


def test_budgets_and_ranks_are_fractions(tmp_path):
    shape = make_model(attention="linear", position="none").cache_shape
    selected_policies, refusals = select_policies(shape, 64, None)
    assert ([p.choice.name for p in selected_policies], refusals) == (["state"], {})
    selected_policies, refusals = select_policies(make_model().cache_shape, 64, None)
    assert not refusals
    options = {p.name: p.choice.options for p in selected_policies}
    assert options["h2o 1/4"] == {"budget": 16, "recent": 8, "sink": 0}
    assert options["window+sink 1/8"] == {"window": 6, "sink": 2}
    assert options["window 1/8"] == {"window": 8, "sink": 0}
    assert make_window_choice(32, True) == Choice("window", window=28, sink=4)
    assert make_window_choice(3, True) == Choice("window", window=3, sink=0)
    _, refusals = select_policies(make_model(position="alibi").cache_shape, 64, None)
    assert options["subgen sampled 1/4"] == options["subgen 1/4"] | {"values": "sampled"}
    kinds = itertools.product(("subgen", "subgen sampled"), ("1/2", "1/4", "1/8"))
    assert set(refusals) == {" ".join(kind) for kind in kinds}
    assert all("alibi" in reason for reason in refusals.values())
    model, path = make_model(), tmp_path / "bases.safetensors"
    fit_low_rank(model, torch.randint(3, 9, (4, 9)), 8, path)
    policies, _ = select_policies(model.cache_shape, 64, path)
    ranks = {p.name: p.choice.options["rank"] for p in policies if p.family == "low rank"}
    assert ranks == {"low rank 3/5": 5, "low rank 1/2": 4, "low rank 1/4": 2, "low rank 1/8": 1}
