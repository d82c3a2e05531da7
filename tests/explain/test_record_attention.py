"""Attention shows why keys are hidden, and weights that its own hooks report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

from polyhead.explain.arrays import ArrayReader
from polyhead.explain.record_attention import explain_mask
from polyhead.introspect.compute_attention import record_attention
from polyhead.nn.kv import KV, Window, attention_mask


def codes(pos: list[int], causal: bool, window: Window | None = None) -> list[str]:
    """Why each query (row) does not see each key: . visible, P padding, F future, W window, D document."""
    at = torch.tensor([pos])
    kv = KV(torch.zeros(1, 1, len(pos), 2), torch.zeros(1, 1, len(pos), 2), at[:, None])
    mask = attention_mask(at, kv, len(pos), causal, window, own_tokens_only=True)
    hidden = explain_mask(mask, at, kv, len(pos), causal, window is not None)[0]
    return ["".join(".PFWD"[code] for code in row) for row in hidden.tolist()]


def test_a_key_is_hidden_for_the_first_reason_that_holds() -> None:
    assert codes([0, 1, 2], True) == [".FF", "..F", "..."]
    assert codes([0, 1, -1], False)[:2] == ["..P", "..P"]
    assert codes([0, 1, 0, 1], True) == [".FDD", "..DD", "DD.F", "DD.."]
    assert codes([0, 1, 2, 3], True, Window(2)) == [".FFF", "..FF", "W..F", "WW.."]
    assert codes([0, 1, 2, 3], False, Window(2, 1)) == ["..WW", "...W", "....", ".W.."]


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
def test_weights_are_those_that_the_forward_pass_reports(config: dict[str, Any]) -> None:
    run = make_run(**config)
    document = explain_walk(run, TEXT, TARGET)
    read = ArrayReader.from_document(document)
    ids = [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in document["sides"]]
    with torch.inference_mode(), record_attention(run.model) as passes:
        run.model(*ids)
    for path, (weights,) in passes.items():
        shown = read(f"{path}.weights")
        assert shown.shape == weights[0].shape
        assert np.abs(shown - weights[0].numpy()).max() < 1e-6, path
    assert len(passes) == 6


def test_linear_attention_has_the_state_that_decoding_continues_from() -> None:
    run = make_run(kind="decoder", attention="linear", position="none")
    document = explain_walk(run, TEXT)
    read = ArrayReader.from_document(document)
    path = "stack.layers.0.attn"
    phi_k, v, state = (read(f"{path}.{role}") for role in ("phi_k", "v", "state"))
    values = np.concatenate([v, np.ones_like(v[..., :1])], -1)
    assert state == pytest.approx(phi_k.transpose(0, 2, 1) @ values, abs=1e-5)
    last = read(f"{path}.phi_q")[:, -1:] @ state
    joined = (last[..., :-1] / (last[..., -1:] + 1e-6))[:, 0].reshape(-1)
    model: Any = run.model
    attn = model.stack.layers[0].attn
    out = joined @ attn.o_proj.weight.detach().numpy().T + attn.o_proj.bias.detach().numpy()
    assert read(f"{path}.out")[-1] == pytest.approx(out, abs=1e-5)
