"""Which number format is chosen, and where it applies."""

from __future__ import annotations

import pytest
import torch

from polyhead.train.precision import autocast, resolve

CPU = torch.device("cpu")


def test_what_is_asked_for_is_used() -> None:
    assert resolve("fp32", CPU) == "fp32"
    assert resolve("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("avx", "amx", "wanted"), [(False, False, "fp32"), (True, False, "bf16"), (False, True, "bf16")]
)
def test_auto_is_bf16_only_where_it_is_fast(
    avx: bool, amx: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert resolve("auto", CPU) == wanted


def test_products_are_rounded_and_weights_and_gradients_are_not() -> None:
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with autocast("bf16", CPU):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype is torch.bfloat16
    assert layer.weight.dtype is layer.weight.grad.dtype is torch.float32
    with autocast("fp32", CPU):
        assert layer(x).dtype is torch.float32
