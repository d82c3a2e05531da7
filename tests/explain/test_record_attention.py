import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import TARGET, TEXT, explain_config, explain_walk, make_inputs, make_run

from polyhead.explain.arrays import ArrayReader
from polyhead.explain.record_attention import explain_mask
from polyhead.introspect.compute_attention import record_attention
from polyhead.nn.kv import KV, Window, attention_mask


@pytest.mark.parametrize(
    ("pos", "causal", "window", "expected"),
    [
        ([0, 1, 2], True, None, [".FF", "..F", "..."]),
        ([0, 1, -1], False, None, ["..P", "..P"]),
        ([0, 1, 0, 1], True, None, [".FDD", "..DD", "DD.F", "DD.."]),
        ([0, 1, 2, 3], True, Window(2), [".FFF", "..FF", "W..F", "WW.."]),
        ([0, 1, 2, 3], False, Window(2, 1), ["..WW", "...W", "....", ".W.."]),
    ],
)
def test_explain_mask_gives_first_reason(pos, causal, window, expected):
    """For each query (row) and key: . visible, P padding, F future, W window, D document."""
    pos = torch.tensor([pos])
    n = pos.size(1)
    kv = KV(torch.zeros(1, 1, n, 2), torch.zeros(1, 1, n, 2), pos[:, None])
    mask = attention_mask(pos, kv, n, causal, window, own_tokens_only=True)
    codes = explain_mask(mask, pos, kv, n, causal, window is not None)[0].tolist()
    assert ["".join(".PFWD"[code] for code in row) for row in codes][: len(expected)] == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attention": {"name": "softmax", "qk_norm": True, "softcap": 2.0, "scale": 0.3}},
        {"attention": {"name": "softmax", "window": 3, "sink": 1}, "position": "shaw"},
        {"attention": "kernel", "n_kv_heads": 2, "position": "rope"},
        {"attention": "linear", "position": "rope"},
        {"attention": "linear", "n_kv_heads": 2},
        {"position": "disentangled"},
    ],
    ids=str,
)
def test_weights_match_hooks_of_forward_pass(config):
    run = make_run(**config)
    document = explain_walk(run, TEXT, TARGET)
    read = ArrayReader.from_document(document)
    with torch.inference_mode(), record_attention(run.model) as passes:
        run.model(*make_inputs(document))
    for path, (weights,) in passes.items():
        array = read(f"{path}.weights")
        assert array.shape == weights[0].shape
        assert np.abs(array - weights[0].numpy()).max() < 1e-6, path
    assert len(passes) == 6


def test_linear_attention_state_gives_next_output():
    config = {"kind": "decoder", "attention": "linear", "position": "none"}
    _, read = explain_config(config)
    path = "stack.layers.0.attn"
    phi_k, v, state = (read(f"{path}.{role}") for role in ("phi_k", "v", "state"))
    values = np.concatenate([v, np.ones_like(v[..., :1])], -1)
    assert state == pytest.approx(phi_k.transpose(0, 2, 1) @ values, abs=1e-5)
    last = read(f"{path}.phi_q")[:, -1:] @ state
    heads_out = (last[..., :-1] / (last[..., -1:] + 1e-6))[:, 0].reshape(-1)
    o_proj = make_run(**config).model.stack.layers[0].attn.o_proj
    out = heads_out @ o_proj.weight.detach().numpy().T + o_proj.bias.detach().numpy()
    assert read(f"{path}.out")[-1] == pytest.approx(out, abs=1e-5)
