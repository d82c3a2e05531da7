"""Which number format is chosen, and where it applies."""

from __future__ import annotations

import pytest
import torch

from polyhead.kernels import cpu_features
from polyhead.train.precision import autocast, resolve_precision

CPU = torch.device("cpu")


def test_what_is_asked_for_is_used() -> None:
    assert resolve_precision("fp32", CPU) == "fp32"
    assert resolve_precision("bf16", CPU) == "bf16"
    assert resolve_precision("fp16", CPU) == "fp16"


@pytest.mark.parametrize(
    ("vendor", "avx", "amx", "wanted"),
    [
        ("AuthenticAMD", False, False, "fp32"),
        ("AuthenticAMD", True, False, "bf16"),
        ("GenuineIntel", True, False, "fp32"),
        ("GenuineIntel", True, True, "bf16"),
    ],
)
def test_auto_is_bf16_only_where_it_is_fast(
    vendor: str, avx: bool, amx: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "cpu_info", lambda: {"vendor_id": vendor})
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert resolve_precision("auto", CPU) == wanted


@pytest.mark.parametrize(
    ("native", "capability", "wanted"),
    [(True, (8, 0), "bf16"), (False, (7, 5), "fp16"), (False, (7, 0), "fp16"), (False, (6, 1), "fp32")],
)
def test_auto_is_what_a_gpu_multiplies(
    native: bool, capability: tuple[int, int], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that emulates bf16 says that it has it, and is slower than in fp32."""
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", torch.device("cuda", 0)) == wanted


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_are_rounded_and_weights_and_gradients_are_not(precision: str, dtype: torch.dtype) -> None:
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with autocast(precision, CPU):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype is dtype
    assert layer.weight.dtype is layer.weight.grad.dtype is torch.float32
    with autocast("fp32", CPU):
        assert layer(x).dtype is torch.float32
