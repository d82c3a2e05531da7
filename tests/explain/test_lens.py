"""The logit lens and the shares of a logit, against the equations written out forwards in NumPy."""

import numpy as np
import pytest
import torch
from tests.explain import explain_helpers as helpers

from polyhead.explain.document import explain

OTHERS = {
    "post-norm with its factor": {"kind": "decoder", "residual": "deepnorm"},
    "sandwich": {"kind": "decoder", "norm_first": True, "sandwich_norm": True},
    "parallel": {"kind": "decoder", "block": "parallel", "norm_first": True},
    "narrow embedding": {"kind": "decoder", "d_embedding": 8},
    "batch norm": {"kind": "decoder", "norm": "batchnorm"},
    "head transform": {"kind": "encoder", "norm_first": True, "head_transform_activation": "gelu"},
    "lstm": {"kind": "decoder", "block": "lstm"},
    "linear": {"kind": "decoder", "attention": "linear", "lm_head_bias": True},
    "experts": {"kind": "decoder", "feed_forward": "moe", "residual_scale": 0.3, "logits_scale": 4.0},
    "capped": {"kind": "decoder", "logit_softcap": 3.0},
}


def explain_lens(config):
    run, document = helpers.explain_design(config)
    with torch.inference_mode():
        logits = run.model(*helpers.make_inputs(document))[0].double()
    return run, document, logits


def read_shares(document):
    lens = document["lens"]
    return lens, helpers.read_document(document)(lens["shares"])


@pytest.mark.parametrize("config", [*(one for one, _ in helpers.DESIGNS.values()), *OTHERS.values()], ids=str)
def test_shares_add_up_to_logits(config):
    run, document, logits = explain_lens(config)
    lens, shares = read_shares(document)
    ids = torch.tensor(lens["tokens"])
    expected = logits.gather(-1, ids).numpy()
    sums = shares.sum(-1)
    if run.config.logit_softcap:
        sums = run.config.logit_softcap * np.tanh(sums / run.config.logit_softcap)
    assert np.abs(sums - expected).max() < 1e-4
    assert np.abs(shares.sum(-1) - lens["logits"]).max() < 1e-4
    assert len({tuple(part.items()) for part in lens["parts"]}) == len(lens["parts"]) == shares.shape[-1]


@pytest.mark.parametrize("design", ["GPT-2", "Vaswani et al.", "Llama"])
def test_each_share_matches_forward_equations(design):
    """What a part writes is carried forwards through all residuals and norms after it."""
    run, document, _ = explain_lens(helpers.DESIGNS[design][0])
    walk = helpers.ReferenceWalk(**helpers.DESIGNS[design][1])
    helpers.walk_model(run, document, walk)
    arrays = {name: x.detach().double().numpy() for name, x in walk.arrays.items()}
    model, is_pair = run.model, run.kind == "encoder-decoder"
    path, stack = ("decoder", model.decoder) if is_pair else ("stack", model.stack)
    embedding = "decoder_embedding" if is_pair else "embedding"
    written, bias = {}, np.zeros_like(arrays[f"{path}.layers.0.attn.out"])

    def cross(norm_path, norm):
        nonlocal bias
        has_mean = f"{norm_path}.mean" in arrays
        spread = arrays[f"{norm_path}.variance" if has_mean else f"{norm_path}.mean_square"]
        gain = norm.weight.detach().double().numpy() / np.sqrt(spread + norm.eps)[:, None]
        for key, x in written.items():
            written[key] = (x - x.mean(-1, keepdims=True) if has_mean else x) * gain
        bias = (bias - bias.mean(-1, keepdims=True) if has_mean else bias) * gain
        if has_mean:
            bias = bias + norm.bias.detach().double().numpy()

    written["embedding", f"{embedding}", None] = arrays[f"{embedding}.scaled"]
    if f"{embedding}.position.rows" in arrays:
        written["position", f"{embedding}.position", None] = arrays[f"{embedding}.position.rows"]
    for i, layer in enumerate(stack.layers):
        for role in ("attn", "cross", "ffn"):
            part, residual_path = getattr(layer, role), f"{path}.layers.{i}.{role}_residual.norm"
            if part is None:
                continue
            name = f"{path}.layers.{i}.{role}"
            if role == "ffn":
                written["feed_forward", name, None] = arrays[f"{name}.out"]
            else:
                w = part.o_proj.weight.detach().double().numpy()
                mix = arrays[f"{name}.mix"]
                for h, columns in enumerate(np.split(w, len(mix), 1)):
                    written["attention", name, h] = mix[h] @ columns.T
                if part.o_proj.bias is not None:
                    bias = bias + part.o_proj.bias.detach().double().numpy()
            residual = getattr(layer, f"{role}_residual")
            if not residual.norm_first:
                cross(residual_path, residual.norm)
    if stack.final_norm is not None:
        cross(f"{path}.final_norm", stack.final_norm)

    lens, shares = read_shares(document)
    vectors = model.head.weight.detach().double().numpy()[np.array(lens["tokens"])] * model.head.scale
    expected = {key: np.einsum("tkc,tc->tk", vectors, x) for key, x in written.items()}
    found = {
        (one["kind"], one.get("path"), one.get("head")): shares[..., i] for i, one in enumerate(lens["parts"])
    }
    biases = np.einsum("tkc,tc->tk", vectors, bias)
    assert np.abs(found.pop(("bias", None, None)) - biases).max() < 1e-4
    assert found.keys() == expected.keys()
    for key, numbers in found.items():
        assert np.abs(numbers - expected[key]).max() < 1e-4, key


@pytest.mark.parametrize(
    "config", [*(one for one, _ in helpers.DESIGNS.values()), OTHERS["head transform"]], ids=str
)
def test_lens_reads_each_layer_as_the_last(config):
    """The model with only its first layers gives the same probabilities."""
    run, document, _ = explain_lens(config)
    lens, inputs = document["lens"], helpers.make_inputs(document)
    stack = {"encoder-decoder": "decoder", "decoder": "stack", "encoder": "encoder.stack"}[run.kind]
    layers = run.model.get_submodule(stack).layers
    for n in range(len(layers), -1, -1):
        with torch.inference_mode():
            p = run.model(*inputs)[0].double().softmax(-1)
        row = lens["rows"][n]
        best = p.topk(3)
        assert row["ids"] == best.indices.tolist()
        helpers.check_close(row["p"], best.values, 2e-6)
        for t, token in enumerate(lens["expected"]):
            if token is None:
                assert row["rank"][t] is None
                continue
            assert row["rank"][t] == 1 + int((p[t] > p[t, token]).sum())
            assert row["p_expected"][t] == pytest.approx(float(p[t, token]), abs=2e-6)
        if n:
            del layers[n - 1]


def test_lens_of_window_and_of_models_without_head():
    run = helpers.make_run(**helpers.DESIGNS["GPT-2"][0])
    whole, part = (helpers.explain_walk(run, n_shown=n)["lens"] for n in (None, 5))
    assert part["positions"] == whole["positions"][-5:]
    assert part["tokens"] == whole["tokens"][-5:]
    assert [row["ids"] for row in part["rows"]] == [row["ids"][-5:] for row in whole["rows"]]
    for config in ({"labels": ["yes", "no"]}, {"lm_head": False, "pooling": "mean"}, {"generator_layers": 1}):
        assert explain(helpers.make_run(kind="encoder", **config), helpers.TEXT)["lens"] is None
