"""Levers on attention against the same model built, masked or fed in that way."""

from __future__ import annotations

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model, run_model

import polyhead.nn.attention.softmax as softmax_module
from polyhead import ModelConfig
from polyhead.explain.levers.attention_changes import (
    CAUSAL_MASK_LEVER,
    POSITIONS_LEVER,
    SCALE_LEVER,
    SHUFFLE_LEVER,
    shuffle_words,
)
from polyhead.explain.levers.comparison import compute_kl
from polyhead.models.build import model_class

DESIGNS = [
    ("decoder", {"position": "rope", "norm_first": True, "n_kv_heads": 2}),
    ("decoder", {"position": "alibi"}),
    ("decoder", {"position": "learned", "attention": {"name": "softmax", "window": 4}}),
    ("encoder-decoder", {"position": "sinusoidal"}),
    ("encoder", {"position": {"name": "t5"}, "norm": "rmsnorm"}),
    ("encoder", {"labels": ["a", "b", "c"], "position": "shaw"}),
]
CAUSAL = DESIGNS[:4]


def with_config(model, **changes):
    """The model of a changed config with the weights that it still has."""
    config = ModelConfig.model_validate(model.config.model_dump() | changes)
    other = model_class(config)(config).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    return other


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
def test_the_scale_is_that_of_the_config(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    attention = {"name": "softmax", **(changes.get("attention", {})), "scale": 0.7}
    expected = run_model(with_config(model, attention=attention), lever_input)
    output = SCALE_LEVER.compute(lever_input, {"scale": 0.7})
    torch.testing.assert_close(output.logits, expected)
    assert output.detail == {"plain_scale": 0.5}  # 1 / sqrt(4)
    assert not torch.allclose(expected, lever_input.plain_logits)
    torch.testing.assert_close(run_model(model, lever_input), lever_input.plain_logits)  # as it was


@pytest.mark.parametrize(("kind", "changes"), CAUSAL)
def test_without_the_causal_mask_every_token_sees_all_others(kind, changes, monkeypatch):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    n = len(lever_input.tokens)
    window = changes.get("attention", {}).get("window", n)
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    ones = torch.ones(n, n, dtype=torch.bool) & (distance < window)

    def attend_with_mask(q, kv, mask=None, *args, causal=False, **options):
        return attend(q, kv, ones[None, None] if causal else mask, *args, causal=False, **options)

    attend = softmax_module.attend
    monkeypatch.setattr(softmax_module, "attend", attend_with_mask)
    expected = run_model(model, lever_input)
    monkeypatch.undo()
    torch.testing.assert_close(CAUSAL_MASK_LEVER.compute(lever_input, {}).logits, expected)
    assert not torch.allclose(expected, lever_input.plain_logits)


def test_linear_attention_without_the_causal_mask_is_that_of_an_encoder():
    model = make_model(attention="linear", position="none", n_layers=1)
    lever_input = make_input(model)
    encoder = make_model("encoder", attention="linear", position="none", n_layers=1)
    encoder.encoder.load_state_dict(
        {name: x for name, x in model.state_dict().items() if name.startswith(("embedding.", "stack."))}
    )
    tokens = torch.tensor([lever_input.tokens])
    with torch.no_grad():
        expected = model.head(encoder.encoder(tokens))[0]
    torch.testing.assert_close(CAUSAL_MASK_LEVER.compute(lever_input, {}).logits, expected)


def test_an_encoder_and_a_recurrent_model_have_no_causal_mask():
    for model in (make_model("encoder"), make_model(block="lstm", position="none")):
        assert "no causal mask" in CAUSAL_MASK_LEVER.find_obstacle(make_input(model))


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
def test_without_positions_is_the_config_without_positions(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    expected = run_model(with_config(model, position="none"), lever_input)
    torch.testing.assert_close(POSITIONS_LEVER.compute(lever_input, {}).logits, expected)
    assert not torch.allclose(expected, lever_input.plain_logits)


def test_a_model_without_positions_has_none_to_remove():
    lever_input = make_input(make_model(position="none"))
    assert POSITIONS_LEVER.find_obstacle(lever_input) == "this model has no position scheme"
    assert SHUFFLE_LEVER.list_cases(lever_input) == [{"positions": "kept"}]


def test_words_move_whole_and_the_last_token_of_a_language_model_stays():
    lever_input = make_input(make_model("encoder"))
    order = shuffle_words(lever_input, seed=0)
    assert sorted(order) == list(range(9))
    assert order != sorted(order)
    assert (order[0], order[8]) == (0, 8)  # special tokens
    for word in lever_input.words:
        start = order.index(word[0])
        assert order[start : start + len(word)] == word
    decoder_input = make_input(make_model())
    assert shuffle_words(decoder_input.replace(words=[[0], [1, 2], [7, 8]]), 5)[8] == 8


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
@pytest.mark.parametrize("positions", ["kept", "none"])
def test_shuffled_words_give_the_output_of_the_shuffled_input(kind, changes, positions):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    output = SHUFFLE_LEVER.compute(lever_input, {"positions": positions, "seed": 1})
    order = output.detail["order"]
    reader = model if positions == "kept" else with_config(model, position="none")
    if kind == "encoder-decoder":
        shuffled = lever_input.replace(source=[lever_input.source[i] for i in order])
        expected = run_model(reader, shuffled)
    else:
        logits = run_model(reader, lever_input.replace(tokens=[lever_input.tokens[i] for i in order]))
        expected = logits if lever_input.rows == [None] else logits[torch.tensor(order).argsort()]
    torch.testing.assert_close(output.logits, expected)
    baseline = lever_input.plain_logits if output.baseline is None else output.baseline
    torch.testing.assert_close(baseline, run_model(reader, lever_input))
    kl = compute_kl(output.logits, baseline)
    if kind == "decoder":
        assert output.is_comparable == [False] * 8 + [True]
    elif positions == "none":  # an encoder without positions reads a set
        assert kl.max() < 1e-8
    else:
        assert kl.max() > 1e-4


def test_a_text_of_one_word_cannot_be_shuffled():
    lever_input = make_input(make_model("encoder")).replace(words=[[1, 2]])
    assert "fewer than two words" in SHUFFLE_LEVER.find_obstacle(lever_input)


def test_the_scale_of_models_without_softmax_is_left_out():
    lever_input = make_input(make_model(attention="linear", position="none"))
    assert SCALE_LEVER.find_obstacle(lever_input) == "this model has no softmax attention"
    unscaled = make_input(make_model(attention={"name": "softmax", "scale": 1.0}))
    assert SCALE_LEVER.find_obstacle(unscaled) == "attention of this model has no scale"
