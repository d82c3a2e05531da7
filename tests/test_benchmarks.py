"""What the benchmarks compare with must be the same model, or the comparison says nothing; and all of them
run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.models import build, preset_config

pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 50,
    "d_model": 16,
    "n_layers": 2,
    "n_decoder_layers": 1,
    "n_heads": 2,
    "d_ff": 24,
    "max_len": 20,
}
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALLEST = """
decode overhead --rounds 1 --batches 1 --new-tokens 4
decode peers --models base --batches 1 --beams 1 --layers 1 --rounds 1 --new-tokens 2
distributed limit --megabytes 9000 --d-model 32 --layers 1
distributed losses "shard 2" --steps 2
distributed memory --d-model 32 --layers 1
export --models language --layers 1 --batches 1 --rounds 1 --new-tokens 2
gpu decode --device cpu --d-model 64 --layers 1 --heads 2 --vocab-size 100 --length 32 --rounds 1
gpu train --device cpu --d-model 64 --layers 1 --heads 2 --vocab-size 100 --length 32 --rounds 1 --documents 8
kernels attention --rounds 1
kernels encode {en} --limit 8 --rounds 1
kernels linear --rounds 1 --lengths 64 --past 1024 --chunks 16
paging lengths --text {en}
paging sharing --run {run} --text {en} --limit 3
paging steps --rounds 1 --batches 1 --past 128 --layers 1 --width 64
parts norm --rounds 2 --rows 2
pipeline --micro-batches 4 --milliseconds 5 --schedules 1f1b
plan {run}/recipe.yaml --rounds 1 --seconds 2
serving http --models tiny --clients 2 --rounds 1
serving load --held 3 --beyond 2 --streams 2
soak --minutes 0.5 --turn 0.2
speed tables --training nanogpt --decoding base-1 --layers 1 --rounds 1 --steps 1 --modes eager --new-tokens 2
speculative steps --rounds 1 --batches 1 --new-tokens 4 --layers 1 --width 64
train language --text {en} --rounds 1 --steps 1 --modes eager compile+bf16 --systems torch.nn
train optimizers --presets tiny --rounds 1
train peers --rounds 1 --max-tokens 300 --modes eager bf16
translate peers --preset tiny --vocab-size 200 --batch 2 --new-tokens 4 --rounds 1
translate shortlist {en} {zh} --preset tiny --vocab-size 400 --lines 4 --rounds 1
translate terms {run} {en} {zh} --lines 3
update adapters --preset tiny --vocabulary 100 --rows 1 --length 16 --updates 1
update products --models tiny --rounds 1
update ranks --rounds 2 --sentences 1500 --vocab-size 500
"""
CASES = [shlex.split(line) for line in SMALLEST.strip().splitlines()]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A text in two languages, and a translator that has learned hardly anything from it."""
    folder = tmp_path_factory.mktemp("benchmarks")
    en, zh = write_corpus(folder, n=600, n_valid=20, n_test=20)["train"]
    recipe = f"""
        data: {{train: ["{en}", "{zh}"], valid_fraction: 0.05}}
        tokenizer: {{vocab_size: 300}}
        model: {{preset: tiny}}
        train: {{steps: 2, max_tokens: 200}}
        out: "{folder / "run"}"
    """
    (folder / "recipe.yaml").write_text("\n".join(line[8:] for line in recipe.splitlines()))
    run_command([sys.executable, "-m", "polyhead", "train", folder / "recipe.yaml"])
    return {"en": en, "zh": zh, "run": folder / "run"}


def run_command(command: list[str | Path]) -> str:
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, (process.stdout + process.stderr)[-2000:]
    return process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_benchmark_runs(case: list[str], inputs: dict[str, Path]) -> None:
    """With the smallest sizes: what it imports and calls is there, and it tells something."""
    name, *options = (word.format(**inputs) for word in case)
    assert run_command([sys.executable, BENCHMARKS / f"{name}.py", *options]).strip()


def test_every_benchmark_and_measurement_has_a_case() -> None:
    """Neither a file nor one of the measurements that it names."""
    files = set(BENCHMARKS.glob("[!_]*.py"))
    assert {case[0] for case in CASES} == {file.stem for file in files}
    for file in files:
        for names in re.findall(r"run_measurement\(__doc__ or \"\", (.*)\)", file.read_text()):
            assert {case[1] for case in CASES if case[0] == file.stem} == set(names.split(", "))


def test_an_unknown_measurement_is_refused() -> None:
    process = subprocess.run(
        [sys.executable, BENCHMARKS / "kernels.py", "liner"], capture_output=True, text=True
    )
    assert process.returncode == 1
    assert "unknown measurement 'liner'; known: linear, attention, encode" in process.stderr


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = spec_from_file_location("_shared", BENCHMARKS / "_shared.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "learned", "feed_forward": {"name": "gelu", "dropout": 0.5}, "scale_embedding": False},
        {
            "position": {"name": "sinusoidal", "base": 50.0},
            "feed_forward": "silu",
            "attention": {"name": "softmax", "dropout": 0.5},
        },
    ],
)
def test_twin_of_hugging_face_has_the_same_logits(peers, norm_first, changes):
    config = ModelConfig.model_validate({**SIZES, "norm_first": norm_first, **changes})
    assert peers.differences(config) == ""
    model = build(config, seed=1).eval()
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.3)
    twin = peers.twin(model, 0, 1, 2).eval()
    source, target = torch.randint(3, 50, (3, 9)), torch.randint(3, 50, (3, 7))
    pos = torch.arange(9).expand(3, 9).masked_fill(torch.arange(9) >= torch.tensor([[9], [4], [7]]), -1)
    expected = twin(input_ids=source, attention_mask=(pos >= 0).long(), decoder_input_ids=target).logits
    torch.testing.assert_close(model(source, target, pos), expected, rtol=1e-4, atol=1e-4)
    assert twin.config.model_type == ("pegasus" if norm_first else "marian")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"position": "rope"}, "position"),
        ({"feed_forward": "swiglu"}, "feed_forward"),
        ({"feed_forward": {"name": "gelu", "tanh": True}}, "feed_forward"),
        ({"norm": "rmsnorm", "n_kv_heads": 1}, "n_kv_heads, norm"),
        ({"attention": {"name": "softmax", "window": 4}}, "attention"),
        ({"tie_embeddings": "target"}, "tie_embeddings"),
    ],
)
def test_designs_without_a_twin_are_named(peers, changes, difference):
    assert peers.differences(ModelConfig.model_validate({**SIZES, **changes})) == difference


def test_peer_of_a_language_model_has_same_logits(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    decode = import_module("decode")
    model = build(preset_config("gpt2", 50, n_layers=2, d_model=16, n_heads=2, max_len=20), seed=1).eval()
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(3, 50, (3, 9))
    torch.testing.assert_close(model(tokens), decode.peer(model).eval()(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("_train_steps")


@pytest.mark.parametrize("kind", ["pairs", "rows"])
def test_training_steps_of_libraries_have_the_same_loss(steps, kind):
    if kind == "pairs":
        workload = steps.pair_workload("tiny", 60, 2, 7, layers=1)
        config = workload.config.model_copy(update={"dropout": 0.0})
        workload = workload._replace(config=config, smoothing=0.0)
        systems = ("Polyhead", "Hugging Face")  # torch.nn's layers have weights of their own
    else:
        workload = steps.language_workload({"d_model": 16, "n_layers": 2, "n_heads": 2}, 60, 2, 7)
        systems = ("Polyhead", "Hugging Face", "torch.nn")
    losses = {}
    for system in systems:
        model = build(workload.config, seed=1).train()
        if system == "Polyhead":
            step = steps._our_step(model, workload, "fp32")
        else:
            step = steps._peer_step(system, "eager", model, workload, None)
        # the second loss shows that the same gradients were taken
        losses[system] = [step(workload.batches[0]) for _ in range(2)]
    for system, values in losses.items():
        assert values == pytest.approx(losses["Hugging Face"], rel=1e-4), system


def test_training_step_costs_three_forward_passes(steps):
    """Of one layer and the head, without the pairs of tokens that a causal mask hides."""
    workload = steps.language_workload({"d_model": 16, "n_layers": 1, "n_heads": 2}, 60, 2, 7)
    tokens, width = 2 * 7, 16
    layer = 2 * tokens * (4 * width**2 + 8 * width**2)
    attention = 2 * 2 * 2 * (7 * 8 // 2) * width
    head = 2 * tokens * width * 60
    assert workload.count_flops() == 3 * (layer + attention + head)


def test_decoding_step_reads_decoder_and_head(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speed = import_module("speed")
    d, layers, vocabulary = 16, 2, 60
    config = preset_config(
        "base", vocabulary, d_model=d, d_ff=64, n_heads=2, n_layers=3, n_decoder_layers=layers
    )
    matrices = (
        4 * d * d + 2 * d * d + 2 * d * 64
    )  # self-attention, queries and outputs of the other, feed-forward
    vectors = 6 * d + 64 + d + 3 * 2 * d  # biases, and norms
    assert speed.count_read_weights(config) == (layers * (matrices + vectors), d * vocabulary)
