"""Which number format is chosen, and where it applies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, small_recipe

import polyhead as ph
from polyhead.kernels import cpu_features
from polyhead.models import Seq2Seq
from polyhead.nn.stack import Stack
from polyhead.train.precision import autocast, compile_model, resolve_precision, use_tf32
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

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


def test_tf32_is_for_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Matmul:
        allow_tf32 = False

    monkeypatch.setattr(torch.backends.cuda, "matmul", Matmul)
    for precision, wanted in (("fp32", False), ("auto", True), ("bf16", False)):
        use_tf32(precision, torch.device("cuda"))  # type: ignore[arg-type]
        assert Matmul.allow_tf32 == wanted
    use_tf32("auto", torch.device("cuda"))
    use_tf32("fp32", CPU)
    assert Matmul.allow_tf32, "the CPU has no say in it"


@pytest.mark.parametrize(
    ("choice", "device", "triton", "wanted"),
    [
        ("auto", "cpu", True, False),
        ("auto", "cuda", True, True),
        ("auto", "cuda", False, False),
        ("none", "cuda", True, False),
        ("layers", "cpu", False, True),
    ],
)
def test_auto_compiles_on_a_gpu_with_triton(
    choice: Any, device: str, triton: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead.train.precision._has_triton", lambda: triton)
    model = ph.build(ph.ModelConfig(vocab_size=20, d_model=8, n_heads=2, n_layers=1), seed=1)
    assert isinstance(model, Seq2Seq)
    assert compile_model(model, choice, torch.device(device)) == wanted
    assert model.encoder.has_compiled_layers == model.decoder.has_compiled_layers == wanted


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_run_learns_evaluates_and_is_resumed_as_another(
    backend: str, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    compile_layers = Stack.compile_layers
    monkeypatch.setattr(Stack, "compile_layers", lambda stack: compile_layers(stack, backend=backend))
    found = {}
    for choice in ("none", "layers"):
        recipe = small_recipe(
            corpus, choice, steps=9, log_every=1, compile=choice, model={"dropout": 0.0}, eval_bleu=True
        )
        stopped = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 5})})
        run_training(stopped, report=Notes())
        run_training(recipe, resume=True, report=Notes())
        rows = [row["loss"] for row in read_metrics(recipe.out / "metrics.jsonl")]
        found[choice] = rows, load_file(recipe.out / "model.safetensors").keys()
    assert found["layers"][0] == pytest.approx(found["none"][0], rel=1e-3)
    assert found["layers"][1] == found["none"][1]
