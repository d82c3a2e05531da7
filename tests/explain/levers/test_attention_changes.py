import pytest
import torch
from tests.explain.levers.levers_helpers import (
    check_lever,
    make_input,
    make_lever_input,
    make_model,
    run_model,
)

import polyhead.nn.attention.softmax as softmax_module
from polyhead import ModelConfig
from polyhead.explain.levers import changes as attention_changes
from polyhead.explain.levers.interface import compute_kl
from polyhead.models.build import model_class

DESIGNS = [
    ("decoder", {"position": "rope", "norm_first": True, "n_kv_heads": 2}),
    ("decoder", {"position": "alibi"}),
    ("decoder", {"position": "learned", "attention": {"name": "softmax", "window": 4}}),
    ("encoder-decoder", {"position": "sinusoidal"}),
    ("encoder", {"position": {"name": "t5"}, "norm": "rmsnorm"}),
    ("encoder", {"labels": ["a", "b", "c"], "position": "shaw"}),
]
for_each_design = pytest.mark.parametrize(("kind", "changes"), DESIGNS)


def with_config(model, **changes):
    config = ModelConfig.model_validate(model.config.model_dump() | changes)
    other = model_class(config)(config).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    return other


@for_each_design
def test_scale_and_positions_match_config(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    attention = {"name": "softmax", **changes.get("attention", {}), "scale": 0.7}
    lever, other = attention_changes.SCALE_LEVER, with_config(model, attention=attention)
    assert check_lever(lever, {"scale": 0.7}, lever_input, other).detail == {
        "plain_scale": 0.5
    }  # 1 / sqrt(4)
    check_lever(attention_changes.POSITIONS_LEVER, {}, lever_input, with_config(model, position="none"))
    torch.testing.assert_close(run_model(model, lever_input), lever_input.plain_logits)  # restored


@pytest.mark.parametrize(("kind", "changes"), DESIGNS[:4])
def test_causal_mask_is_removed(kind, changes, monkeypatch):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    n = len(lever_input.tokens)
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    visible = distance < changes.get("attention", {}).get("window", n)
    attend = softmax_module.attend

    def attend_with_mask(q, kv, mask=None, *args, causal=False, **options):
        return attend(q, kv, visible[None, None] if causal else mask, *args, causal=False, **options)

    with monkeypatch.context() as patch:
        patch.setattr(softmax_module, "attend", attend_with_mask)
        expected = run_model(model, lever_input)
    torch.testing.assert_close(attention_changes.CAUSAL_MASK_LEVER.compute(lever_input, {}).logits, expected)
    assert not torch.allclose(expected, lever_input.plain_logits)


def test_linear_attention_without_mask_matches_encoder():
    options = {"attention": "linear", "position": "none", "n_layers": 1}
    model, encoder = make_model(**options), make_model("encoder", **options)
    lever_input = make_input(model)
    state = {name: x for name, x in model.state_dict().items() if name.startswith(("embedding.", "stack."))}
    encoder.encoder.load_state_dict(state)
    with torch.no_grad():
        expected = model.head(encoder.encoder(torch.tensor([lever_input.tokens])))[0]
    torch.testing.assert_close(attention_changes.CAUSAL_MASK_LEVER.compute(lever_input, {}).logits, expected)


def test_shuffle_keeps_words_and_special_tokens():
    lever_input = make_lever_input("encoder")
    order = attention_changes.shuffle_words(lever_input, seed=0)
    assert order != sorted(order) == list(range(9))
    assert (order[0], order[8]) == (0, 8)  # special tokens
    for word in lever_input.words:
        start = order.index(word[0])
        assert order[start : start + len(word)] == word
    decoder_input = make_lever_input().replace(words=[[0], [1, 2], [7, 8]])
    assert attention_changes.shuffle_words(decoder_input, 5)[8] == 8  # the last token of a language model


@for_each_design
@pytest.mark.parametrize("positions", ["kept", "none"])
def test_shuffle_matches_shuffled_input(kind, changes, positions):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    output = attention_changes.SHUFFLE_LEVER.compute(lever_input, {"positions": positions, "seed": 1})
    order = output.detail["order"]
    other = model if positions == "kept" else with_config(model, position="none")
    if kind == "encoder-decoder":
        other_input = lever_input.replace(source=[lever_input.source[i] for i in order])
        expected = run_model(other, other_input)
    else:
        logits = run_model(other, lever_input.replace(tokens=[lever_input.tokens[i] for i in order]))
        expected = logits if lever_input.rows == [None] else logits[torch.tensor(order).argsort()]
    torch.testing.assert_close(output.logits, expected)
    baseline = lever_input.plain_logits if output.baseline is None else output.baseline
    torch.testing.assert_close(baseline, run_model(other, lever_input))
    kl = compute_kl(output.logits, baseline)
    if kind == "decoder":
        assert output.is_comparable == [False] * 8 + [True]
    elif positions == "none":  # an encoder without positions reads a set
        assert kl.max() < 1e-8
    else:
        assert kl.max() > 1e-4


def test_obstacles_of_attention_levers():
    no_position = make_lever_input(position="none")
    assert attention_changes.POSITIONS_LEVER.find_obstacle(no_position) == "this model has no position scheme"
    assert attention_changes.SHUFFLE_LEVER.list_cases(no_position) == [{"positions": "kept"}]
    one_word = make_lever_input("encoder").replace(words=[[1, 2]])
    assert "fewer than two words" in attention_changes.SHUFFLE_LEVER.find_obstacle(one_word)
    linear = make_lever_input(attention="linear", position="none")
    assert attention_changes.SCALE_LEVER.find_obstacle(linear) == "this model has no softmax attention"
    no_scale = make_lever_input(attention={"name": "softmax", "scale": 1.0})
    assert attention_changes.SCALE_LEVER.find_obstacle(no_scale) == "attention of this model has no scale"
    for lever_input in (make_lever_input("encoder"), make_lever_input(block="lstm", position="none")):
        assert "no causal mask" in attention_changes.CAUSAL_MASK_LEVER.find_obstacle(lever_input)
