"""Models on another device say and learn what they do on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.device.ghost import Ghost, haunted

import polyhead as ph
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POSITION
from polyhead.models import build
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy

SIZES = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 4, "max_len": 64, "dropout": 0.0}
KINDS = ("decoder", "encoder", "encoder-decoder")
PARTS: list[dict[str, Any]] = [
    *({"attention": name} for name in ATTENTION.names()),
    *({"position": name} for name in POSITION.names()),
    *({"norm": name} for name in NORM.names()),
    *({"feed_forward": name} for name in FEED_FORWARD.names()),
    *(
        {
            "block": name,
            "norm_first": name == "parallel",
            "position": "none" if name == "gated_conv" else "rope",
        }
        for name in BLOCK.names()
        # lstm, gru: their cells are one operation of CUDA's own; rnn: torch transposes its output in place
        if name not in ("lstm", "gru", "rnn")
    ),
    {
        "attention": {"name": "softmax", "window": 3, "sink": 1, "qk_norm": True, "softcap": 5.0},
        "n_kv_heads": 2,
    },
]


def learned(kind: str, changes: dict[str, Any], device: str) -> list[torch.Tensor]:
    """The loss of a batch and the gradients of it, on the CPU."""
    model = (
        build(ph.ModelConfig.model_validate({**SIZES, "kind": kind, **changes}), seed=1).to(device).train()
    )
    draw = torch.Generator().manual_seed(0)
    tokens, pos = torch.randint(0, 50, (3, 9), generator=draw), torch.arange(9).repeat(3, 1)
    pos[1, 6:] = -1
    labels = tokens.masked_fill(pos < 0, IGNORE_INDEX).to(device)
    tokens, pos = tokens.to(device), pos.to(device)
    given = (tokens, tokens, pos, pos) if kind == "encoder-decoder" else (tokens, pos)
    loss = cross_entropy(model.features(*given), model.head, labels, 0.1)
    loss.total.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert all(isinstance(grad, Ghost) == (device != "cpu") for grad in grads.values())
    return [loss.total.detach().cpu(), *(grad.cpu() for grad in grads.values())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", PARTS, ids=str)
def test_a_model_learns_there_what_it_learns_here(kind: str, changes: dict[str, Any]) -> None:
    wanted = learned(kind, changes, "cpu")
    with haunted() as device:
        found = learned(kind, changes, str(device))
    assert len(found) == len(wanted)
    largest = max(float(b.abs().max()) for b in wanted[1:])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def test_what_stayed_behind_is_noticed() -> None:
    with haunted() as device:
        model = build(ph.ModelConfig.model_validate({**SIZES, "kind": "decoder"}), seed=1).to(device)
        with pytest.raises(RuntimeError, match="one device"):
            model(torch.zeros(2, 5, dtype=torch.int64))
