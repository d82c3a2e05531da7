import json
import re
import runpy
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.models import build, preset_config

pytest.importorskip("transformers")

SIZES = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_decoder_layers": 1, "n_heads": 2}
SIZES |= {"d_ff": 24, "max_len": 20}
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
LINES = Path(__file__).with_name("benchmark_cases.txt").read_text().splitlines()
CASES = [shlex.split(line) for line in LINES]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A text in two languages, and a translator that has learned hardly anything from it."""
    folder = tmp_path_factory.mktemp("benchmarks")
    en, zh = write_corpus(folder, n=600, n_valid=20, n_test=20)["train"]
    recipe = {"data": {"train": [str(en), str(zh)], "valid_fraction": 0.05}, "model": {"preset": "tiny"}}
    recipe |= {"tokenizer": {"vocab_size": 300}, "train": {"steps": 2, "max_tokens": 200}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe | {"out": str(folder / "run")}))
    run_command([sys.executable, "-m", "polyhead", "train", folder / "recipe.yaml"])
    return {"en": en, "zh": zh, "run": folder / "run"}


def run_command(command):
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, (process.stdout + process.stderr)[-2000:]
    return process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_benchmark_runs(case, inputs):
    name, *options = (word.format(**inputs) for word in case)
    assert run_command([sys.executable, BENCHMARKS / f"{name}.py", *options]).strip()


def test_every_benchmark_and_measurement_has_a_case(peers, monkeypatch, capsys):
    files = set(BENCHMARKS.glob("[!_]*.py"))
    assert {case[0] for case in CASES} == {file.stem for file in files}
    for file in files:
        for names in re.findall(r"run_measurement\(__doc__ or \"\", (.*)\)", file.read_text()):
            assert {case[1] for case in CASES if case[0] == file.stem} == set(names.split(", "))
    monkeypatch.setattr(sys, "argv", ["kernels.py", "liner"])
    with pytest.raises(SystemExit, match="unknown measurement 'liner'; known: linear, attention, encode"):
        runpy.run_path(str(BENCHMARKS / "kernels.py"), run_name="__main__")


@pytest.fixture
def import_benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.fixture
def peers(import_benchmark):
    return import_benchmark("_shared")


@pytest.fixture
def steps(import_benchmark):
    return import_benchmark("_train_steps")


@pytest.fixture
def workloads(import_benchmark):
    return import_benchmark("_workloads")


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "learned", "feed_forward": {"name": "gelu", "dropout": 0.5}, "scale_embedding": False},
        {"position": {"name": "sinusoidal", "base": 50.0}, "feed_forward": "silu"},
        {"attention": {"name": "softmax", "dropout": 0.5}},
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


def test_peer_of_a_language_model_has_same_logits(import_benchmark):
    decode = import_benchmark("decode")
    model = build(preset_config("gpt2", 50, n_layers=2, d_model=16, n_heads=2, max_len=20), seed=1).eval()
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(3, 50, (3, 9))
    torch.testing.assert_close(model(tokens), decode.peer(model).eval()(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["pairs", "rows", "documents"])
def test_training_steps_of_libraries_have_the_same_loss(steps, workloads, kind):
    systems = ("Polyhead", "Hugging Face", "torch.nn")
    if kind == "pairs":
        workload = workloads.pair_workload("tiny", 60, 2, 7, layers=1)
        config = workload.config.model_copy(update={"dropout": 0.0})
        workload = workload._replace(config=config, smoothing=0.0)
        systems = ("Polyhead", "Hugging Face")  # torch.nn's layers have weights of their own
    elif kind == "documents":
        text = "to be\n\nor not\n\nto be, that is\n\n" * 9
        workload = workloads.text_workload(text, rows=2, length=16, has_documents=True, layers=1)
        assert (workload.batches[0].pos == 0).sum() > 2  # more documents than rows
    else:
        workload = workloads.language_workload({"d_model": 16, "n_layers": 2, "n_heads": 2}, 60, 2, 7)
    losses = {}
    for system in systems:
        model = build(workload.config, seed=1).train()
        if system == "Polyhead":
            step = steps.our_step(model, workload, "fp32")
        else:
            step = steps._peer_step(system, "eager", model, workload, None)
        # the second loss shows that the same gradients were taken
        losses[system] = [step(workload.batches[0]) for _ in range(2)]
    for system, values in losses.items():
        assert values == pytest.approx(losses["Hugging Face"], rel=1e-4), system


def test_training_and_decoding_steps_are_counted(workloads, import_benchmark):
    """Of one layer and the head, without the pairs of tokens that a causal mask hides."""
    workload = workloads.language_workload({"d_model": 16, "n_layers": 1, "n_heads": 2}, 60, 2, 7)
    tokens, width = 2 * 7, 16
    layer = 2 * tokens * (4 * width**2 + 8 * width**2)
    attention = 2 * 2 * 2 * (7 * 8 // 2) * width
    head = 2 * tokens * width * 60
    assert workload.count_flops() == 3 * (layer + attention + head)
    # a decoding step reads decoder and head
    speed = import_benchmark("speed")
    d, layers, vocabulary = 16, 2, 60
    sizes = {"d_model": d, "d_ff": 64, "n_heads": 2, "n_layers": 3, "n_decoder_layers": layers}
    config = preset_config("base", vocabulary, **sizes)
    # self-attention, queries and outputs of the other, feed-forward
    matrices = 4 * d * d + 2 * d * d + 2 * d * 64
    vectors = 6 * d + 64 + d + 3 * 2 * d  # biases, and norms
    assert speed.count_read_weights(config) == (layers * (matrices + vectors), d * vocabulary)
