"""Activation patching, against hooks on the model itself that replace one vector."""

import numpy as np
import pytest
import torch
from tests.explain import explain_helpers as helpers

from polyhead.core.errors import UserError
from polyhead.explain.document import explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.table import make_speller
from polyhead.explain.patching import explain_patching

OTHER = "the dog barks at the red house"
STACKS = {"encoder-decoder": ("encoder", "decoder"), "decoder": ("stack",), "encoder": ("encoder.stack",)}
CONFIGS = {
    "decoder": helpers.DESIGNS["GPT-2"][0],
    "translator": {"norm_first": True},
    "masked": {"kind": "encoder", "position": "t5"},
    "classifier": {"kind": "encoder", "labels": ["a", "b", "c"]},
    "shared layers": {"kind": "decoder", "share_layers": True, "n_layers": 3, "position": "rope"},
    "detector": {"kind": "encoder", "generator_layers": 1},
}


def read_pair(run):
    """The inputs of the model for both texts, and the explanation of their difference."""
    target = helpers.TARGET if run.kind == "encoder-decoder" else None
    text, other = (read_inputs(run, one, target) for one in (helpers.TEXT, OTHER))
    windows = [(0, len(side.ids)) for side in text.sides]
    return text, other, explain_patching(run, text, OTHER, windows)


def read_row(run, inputs, patching):
    """Logits of the compared row, by the model itself; those of one logit with 0 for the other class."""
    logits = run.model(*inputs.args)[0]
    if patching["position"] is None:
        return logits
    row = logits[patching["position"]]
    return row if row.dim() else torch.stack([torch.zeros(()), row])


def patch_by_hook(run, text, other, path, layer, token, patching):
    """Logits of the other text with the input of a layer, or the output of the last one, set at one token.

    Shared layers are one module that is called once for each.
    """
    layers = run.model.get_submodule(path).layers
    n_calls = len(layers) if layers[0] is layers[-1] else 1
    at, is_last = min(layer, len(layers) - 1), layer == len(layers)
    calls, saved = [], []

    def change(x):
        calls.append(x)
        if (len(calls) - 1) % n_calls != at % n_calls:
            return x
        x = x.clone()
        if saved:
            x[0, token] = saved[0][0, token]
        else:
            saved.append(x)
        return x

    register = layers[at].register_forward_hook if is_last else layers[at].register_forward_pre_hook
    handle = register(lambda *a: change(a[2]) if is_last else (change(a[1][0]), *a[1][1:]))
    with torch.no_grad():
        run.model(*text.args)
        row = read_row(run, other, patching)
    handle.remove()
    return row.double()


def find_answers(rows, patching):
    """The two answers: the best of the first text, and the one with the recorded differences of logits."""
    best, expected = int(rows[0].argmax()), (patching["difference"], patching["other_difference"])
    for i in range(len(rows[0])):
        if [float(row[best] - row[i]) for row in rows] == pytest.approx(expected, abs=2e-5):
            return best, i
    raise AssertionError("no logits have these differences")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (i > 1)) for i, n in enumerate(CONFIGS)]
)
def test_shares_are_those_of_hooks(name):
    run = helpers.make_run(**CONFIGS[name])
    text, other, patching = read_pair(run)
    with torch.no_grad():
        rows = [read_row(run, one, patching).double() for one in (text, other)]
    a, b = find_answers(rows, patching)
    assert patching["answers"] == [make_speller(run)(i) for i in (a, b)]
    assert b == rows[1].argmax() or a == rows[1].argmax()
    plain, corrupted = (row[a] - row[b] for row in rows)
    for found, path in zip(patching["maps"], STACKS.get(run.kind, ("encoder.stack",)), strict=True):
        shares = np.array(found["shares"])
        n_layers = len(run.model.get_submodule(path).layers)
        assert shares.shape == (n_layers + 1, len(text.sides[found["side"]].ids))
        tokens = {0, shares.shape[1] // 2, shares.shape[1] - 1, *np.abs(shares).argmax(1).tolist()}
        for layer in range(n_layers + 1):
            for token in tokens:
                row = patch_by_hook(run, text, other, path, layer, token, patching)
                share = float((row[a] - row[b] - corrupted) / (plain - corrupted))
                assert shares[layer, token] == pytest.approx(share, abs=1e-3), (path, layer, token)
        # before the first layer a token carries the difference if it is another one
        sides = (inputs.sides[found["side"]].ids for inputs in (text, other))
        differing = [i for i, pair in enumerate(zip(*sides, strict=True)) if len(set(pair)) > 1]
        assert [i for i, share in enumerate(shares[0]) if abs(share) > 1e-4] == differing
        if len(differing) == 1:
            assert shares[0, differing[0]] == pytest.approx(1, abs=1e-4)
    if patching["position"] is not None:
        last = np.eye(shares.shape[1])[patching["position"]]
        assert np.abs(shares[-1] - last).max() < 1e-4
    if run.kind == "decoder":
        assert patching["position"] == len(text.sides[0].ids) - 1


def test_other_text_must_fit():
    run = helpers.make_run(kind="decoder")
    with pytest.raises(UserError, match="must have as many tokens as each other: 'a dog barks"):
        explain(run, helpers.TEXT, other="a dog", has_lever_cases=False)
    with pytest.raises(UserError, match="no difference to restore"):
        explain(run, helpers.TEXT, other=helpers.TEXT, has_lever_cases=False)
    headless = helpers.make_run(kind="encoder", lm_head=False)
    with pytest.raises(UserError, match="without a head has no output"):
        explain(headless, helpers.TEXT, other=OTHER, has_lever_cases=False)
