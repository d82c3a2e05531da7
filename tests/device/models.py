"""Models on a second device give the losses and gradients of the CPU."""

import pytest
import torch
from tests.device.ghost import Ghost, ghost_device

import polyhead as ph
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POSITION
from polyhead.models import build
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy

SIZES = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 4, "max_len": 64, "dropout": 0.0}
KINDS = ("decoder", "encoder", "encoder-decoder")
# lstm and gru are single operations of CUDA; rnn: torch transposes its output in place
BLOCKS = [name for name in BLOCK.names() if name not in ("lstm", "gru", "rnn", "conv", "gated_conv")]
SOFTMAX = {"name": "softmax", "window": 3, "sink": 1, "qk_norm": True, "softcap": 5.0}
REGISTRIES = (ATTENTION, POSITION, NORM, FEED_FORWARD)
PARTS = [
    *({registry.kind: name} for registry in REGISTRIES for name in registry.names()),
    *({"block": name, "norm_first": name == "parallel", "position": "rope"} for name in BLOCKS),
    *({"block": name, "position": "none"} for name in ("conv", "gated_conv")),
    {"attention": SOFTMAX, "n_kv_heads": 2},
]


def loss_and_gradients(kind, changes, device):
    model = (
        build(ph.ModelConfig.model_validate({**SIZES, "kind": kind, **changes}), seed=1).to(device).train()
    )
    generator = torch.Generator().manual_seed(0)
    tokens, pos = torch.randint(0, 50, (3, 9), generator=generator), torch.arange(9).repeat(3, 1)
    pos[1, 6:] = -1
    labels = tokens.masked_fill(pos < 0, IGNORE_INDEX).to(device)
    tokens, pos = tokens.to(device), pos.to(device)
    inputs = (tokens, tokens, pos, pos) if kind == "encoder-decoder" else (tokens, pos)
    loss = cross_entropy(model.features(*inputs), model.head, labels, 0.1)
    loss.total.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert all(isinstance(grad, Ghost) == (device != "cpu") for grad in grads.values())
    return [loss.total.detach().cpu(), *(grad.cpu() for grad in grads.values())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", PARTS, ids=str)
def test_training_step_matches_the_cpu(kind, changes):
    expected = loss_and_gradients(kind, changes, "cpu")
    with ghost_device() as device:
        actual = loss_and_gradients(kind, changes, str(device))
    assert len(actual) == len(expected)
    largest = max(float(b.abs().max()) for b in expected[1:])
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def test_mixed_devices_raise():
    with ghost_device() as device:
        model = build(ph.ModelConfig.model_validate({**SIZES, "kind": "decoder"}), seed=1).to(device)
        with pytest.raises(RuntimeError, match="one device"):
            model(torch.zeros(2, 5, dtype=torch.int64))
