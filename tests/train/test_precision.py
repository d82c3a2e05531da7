import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, small_recipe, with_train

import polyhead as ph
from polyhead.checkpoint.checkpoint import read_state
from polyhead.kernels import cpu_features
from polyhead.kernels.training import products
from polyhead.nn.stack import Stack
from polyhead.train import precision as precision_module
from polyhead.train import run_training as run_training_module
from polyhead.train.precision import (
    autocast,
    choose_precision,
    compile_model,
    resolve_precision,
    use_tf32,
)
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("vendor", "avx", "amx", "expected"),
    [
        ("AuthenticAMD", False, False, "fp32"),
        ("AuthenticAMD", True, False, "bf16"),
        ("GenuineIntel", True, False, "fp32"),
        ("GenuineIntel", True, True, "bf16"),
    ],
)
def test_auto_is_bf16_on_fast_processors(vendor, avx, amx, expected, monkeypatch):
    monkeypatch.setattr(cpu_features, "cpu_info", lambda: {"vendor_id": vendor})
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert resolve_precision("auto", CPU) == expected
    assert [resolve_precision(name, CPU) for name in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(("bf16_seconds", "expected"), [(0.9, "bf16"), (0.99, "fp32"), (2.0, "fp32")])
def test_auto_is_measured_once_where_bf16_exists(bf16_seconds, expected, monkeypatch):
    """With a clock by which a pass over the model's products takes 1 s in fp32."""
    now, passes = [0.0], []

    def multiply(dtype, n_tokens, shapes):
        passes.append((dtype, n_tokens, shapes))
        now[0] += 1.0 if dtype is torch.float32 else bf16_seconds

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(precision_module, "_multiply", multiply)
    monkeypatch.setattr(products, "_folder", lambda: None)
    monkeypatch.setattr(products, "_choices", {})
    monkeypatch.setattr(products.time, "perf_counter", lambda: now[0])
    model = ph.build(ph.ModelConfig(vocab_size=200, d_model=128, n_heads=2, n_layers=1), seed=1)
    assert choose_precision("auto", CPU, model, 512) == expected
    assert passes[0] == (
        torch.float32,
        512,
        sorted({tuple(p.shape) for p in model.parameters() if p.ndim == 2}),
    )
    n_passes = len(passes)
    assert choose_precision("auto", CPU, model, 512) == expected and len(passes) == n_passes, "kept"
    assert choose_precision("bf16", CPU, model, 512) == "bf16"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose_precision("auto", CPU, model, 512) == "fp32" and len(passes) == n_passes


@pytest.mark.usefixtures("no_report")
def test_resumed_run_keeps_its_precision(corpus_dir, monkeypatch):
    """That of its first steps, although the processor would choose another one now."""
    monkeypatch.setattr(run_training_module, "is_measured", lambda *_: True)
    chosen = iter(["bf16", "fp32"])
    monkeypatch.setattr(run_training_module, "choose_precision", lambda *_: next(chosen))
    recipe, notes = small_recipe(corpus_dir, "run"), Notes()
    run_training(with_train(recipe, steps=2), report=notes)
    run_training(with_train(recipe, steps=4), resume=True, report=Notes())
    assert any("auto is bf16" in line for line in notes.lines)
    [path] = (recipe.out / "checkpoints").glob("step-*4")
    state = read_state(path)
    assert state["precision"] == "bf16" and next(chosen) == "fp32"


@pytest.mark.parametrize(
    ("native", "capability", "expected"),
    [(True, (8, 0), "bf16"), (False, (7, 5), "fp16"), (False, (7, 0), "fp16"), (False, (6, 1), "fp32")],
)
def test_auto_is_the_native_format_of_a_gpu(native, capability, expected, monkeypatch):
    """A GPU that emulates bf16 reports it as supported, and is slower than in fp32."""
    is_supported = lambda including_emulation=True: native or including_emulation  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", torch.device("cuda", 0)) == expected


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_rounds_products_not_weights_or_gradients(precision, dtype):
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with autocast(precision, CPU):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype is dtype
    assert layer.weight.dtype is layer.weight.grad.dtype is torch.float32
    with autocast("fp32", CPU):
        assert layer(x).dtype is torch.float32


def test_tf32_is_for_auto_on_a_gpu(monkeypatch):
    class Matmul:
        allow_tf32 = False

    monkeypatch.setattr(torch.backends.cuda, "matmul", Matmul)
    for precision, expected in (("fp32", False), ("auto", True), ("bf16", False)):
        use_tf32(precision, torch.device("cuda"))
        assert Matmul.allow_tf32 == expected
    use_tf32("auto", torch.device("cuda"))
    use_tf32("fp32", CPU)
    assert Matmul.allow_tf32, "training on a CPU does not change it"


@pytest.mark.parametrize(
    ("choice", "device", "has_triton", "expected"),
    [
        ("auto", "cpu", True, False),
        ("auto", "cuda", True, True),
        ("auto", "cuda", False, False),
        ("none", "cuda", True, False),
        ("layers", "cpu", False, True),
    ],
)
def test_auto_compiles_on_a_gpu_with_triton(choice, device, has_triton, expected, monkeypatch):
    monkeypatch.setattr("polyhead.train.precision._has_triton", lambda: has_triton)
    model = ph.build(ph.ModelConfig(vocab_size=20, d_model=8, n_heads=2, n_layers=1), seed=1)
    assert compile_model(model, choice, torch.device(device)) == expected
    assert model.encoder.has_compiled_layers == model.decoder.has_compiled_layers == expected


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled_run_matches_plain_run(backend, corpus_dir, monkeypatch):
    torch._dynamo.reset()
    compile_layers = Stack.compile_layers
    monkeypatch.setattr(Stack, "compile_layers", lambda stack: compile_layers(stack, backend=backend))
    results = {}
    for choice in ("none", "layers"):
        options = {"steps": 9, "log_every": 1, "model": {"dropout": 0.0}, "eval_bleu": True}
        recipe = small_recipe(corpus_dir, choice, compile=choice, **options)
        run_training(with_train(recipe, steps=5), report=Notes())
        run_training(recipe, resume=True, report=Notes())
        losses = [row["loss"] for row in read_metrics(recipe.out / "metrics.jsonl")]
        results[choice] = losses, load_file(recipe.out / "model.safetensors").keys()
    assert results["layers"][0] == pytest.approx(results["none"][0], rel=1e-3)
    assert results["layers"][1] == results["none"][1]
