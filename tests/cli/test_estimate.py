import json
import shlex
from pathlib import Path

import pytest

from polyhead.core.choice import Choice
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.models import preset_config


@pytest.fixture
def estimate(cli):
    """A function that returns what `estimate` prints, as JSON if that is an option."""

    def run(command):
        out = cli("estimate", *shlex.split(command)).out
        return json.loads(out) if "--json" in command else out

    return run


def test_presets_are_estimated(estimate):
    options = "--batch-size 2 --seq-len 64 --context-len 64 --no-probe --json"
    tree = estimate(f"gpt2 model.n_layers=2 model.n_kv_heads=4 {options}")
    assert tree["name"] == "gpt2"
    assert tree["largest"] == {"rows": 2, "length": 64, "source": 0, "label_count": None}
    # layers, keys and values, heads, their width, bytes
    assert tree["decoding"]["heads"]["4"] == 2 * 2 * 4 * 64 * 4
    options = "tiny model.n_layers=1 --no-probe --seq-len 32 --context-len 16"
    out = estimate(f"{options} --data-parallel 8 --bandwidth 1")
    assert "data parallel" in out and "with nccl" in out and "floating-point operations" not in out
    assert "floating-point operations" in estimate(f"{options} --details")
    out = estimate("gpt2 model.n_layers=2 --no-probe --seq-len 64 --context-len 8 --hardware a100")
    assert "sent per rank" not in out and "memory of a rank, at most\n" in out and "MFU" in out
    out = estimate("gpt2 model.n_layers=2 --no-probe --batch-size 2048 --context-len 8 --hardware a100")
    assert "more than the 80 GB of a100" in out


def test_recipe_whose_text_is_missing(tmp_path, monkeypatch, estimate):
    monkeypatch.chdir(tmp_path)

    recipe = "data: {train: [a.en, a.de], valid: [b.en, b.de]}\nmodel: {preset: tiny, n_layers: 1}\n"
    Path("mine.yaml").write_text(recipe + "train: {steps: 9}\n")
    out = estimate("mine.yaml train.steps=11 --no-probe --context-len 8")
    assert "a.en, a.de, b.en, b.de: not found" in out
    assert "quality: unknown without the text" in out
    assert "in 11 updates" in estimate("mine.yaml train.steps=11 --no-probe --context-len 8 --details")


def test_rank_of_an_accelerator(estimate):
    command = (
        "gpt2 model.n_layers=4 --no-probe --batch-size 8 --seq-len 256 --context-len 8 --shard 4 "
        "--tensor-parallel 2 "
        "--pipeline 2 --micro-batches 4 --interleave 2 --context-parallel 2 --recompute blocks "
        "--hardware h100 --bandwidth 12.5 --intra-node-bandwidth 100 --nproc-per-node 4"
    )
    tree = estimate(f"{command} --json")
    rank = tree["rank"]
    assert tree["precision"] == "bf16" and tree["traffic"]["ranks"] == 4 * 2 * 2 * 2
    assert (rank["hardware"]["name"], rank["recompute"]) == ("h100", "blocks")
    links = ("bandwidth", "intra_node_bandwidth", "nproc_per_node", "interleave", "shard")
    assert [rank["layout"][name] for name in links] == [12.5e9, 100e9, 4, 2, 4]
    # 2 of 4 layers on 2 rows of 128 tokens, of 2 + 1 / 2 micro-batches, in 2 shares
    config = preset_config("gpt2", 50257).model_copy(update={"n_layers": 4})
    options = {"precision": "bf16", "recompute": True}
    memory = estimate_training_memory(config, BatchShape(2, 128), Choice("adamw"), **options).activations
    assert memory is not None and memory > 4 * 2 * 128 * 768 * 4
    assert rank["memory"]["activations"] == memory / 2 * 2.5 / 2
    assert rank["time"]["total"] > rank["time"]["compute"] > 0
    out = estimate(command)
    assert "memory of a rank, at most, recompute blocks" in out and "of the 80 GB of h100" in out
    assert "time of an update on h100, bf16" in out and "exposed: tensor" in out
