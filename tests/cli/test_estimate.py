"""``polyhead estimate`` from the shell."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from polyhead.cli import main
from polyhead.core.choice import Choice
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.models import preset_config

RECIPE = Path(__file__).parents[2] / "recipes" / "multi30k-en-de.yaml"


def test_a_preset_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "estimate",
                "gpt2",
                "model.n_kv_heads=4",
                "--batch-size",
                "2",
                "--seq-len",
                "64",
                "--context-len",
                "64",
                "--no-probe",
                "--json",
            ]
        )
        == 0
    )
    tree = json.loads(capsys.readouterr().out)
    assert tree["name"] == "gpt2"
    assert tree["largest"] == {"rows": 2, "length": 64, "source": 0, "label_count": None}
    # layers, keys and values, heads, their width, bytes
    assert tree["decoding"]["heads"]["4"] == 12 * 2 * 4 * 64 * 4


def test_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "estimate",
                "tiny",
                "--no-probe",
                "--seq-len",
                "32",
                "--context-len",
                "16",
                "--data-parallel",
                "8",
                "--bandwidth",
                "1",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "floating-point operations" not in out, "formulas are behind --details"
    assert (
        main(["estimate", "tiny", "--no-probe", "--seq-len", "32", "--context-len", "16", "--details"]) == 0
    )
    assert "floating-point operations" in capsys.readouterr().out
    assert "data parallel" in out and "with nccl" in out


def test_a_recipe_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        "data: {train: [a.en, a.de], valid: [b.en, b.de]}\nmodel: {preset: tiny}\ntrain: {steps: 9}\n"
    )
    assert main(["estimate", "mine.yaml", "train.steps=11", "--no-probe"]) == 0
    out = capsys.readouterr().out
    assert "a.en, a.de, b.en, b.de: not found" in out
    assert "quality: unknown without the text" in out
    assert main(["estimate", "mine.yaml", "train.steps=11", "--no-probe", "--details"]) == 0
    assert "in 11 updates" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bert-bse"], "did you mean 'bert-base'?"),
        (["gpt2", "model.d_modl=3"], "did you mean 'd_model'?"),
        (["gpt2", "train.lr=3"], "a preset supports only keys of model"),
        (["none.yaml"], "no such file"),
        (["tiny", "--tensor-parallel", "3", "--no-probe"], "does not divide n_heads (4): one of 1, 2, 4"),
        (["tiny", "--seq-len", "5000", "--no-probe"], "more than max_len"),
        (["tiny", "model.n_heads=3", "--no-probe"], "d_model"),
        ([str(RECIPE), "train.freeze=[encoder_embeding]", "--no-probe"], "did you mean 'encoder_embedding'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_of_a_run_the_recipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {}\n")
    assert main(["estimate", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"not a recipe; did you mean '{tmp_path}/recipe.yaml'?\n")


def test_what_is_no_design_is_told_what_to_do(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", str(tiny)]) == 2
    assert f"is a run without a recipe, so the training is unknown; polyhead params {tiny} counts" in (
        capsys.readouterr().err
    )
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("")
    assert main(["estimate", "mine"]) == 2
    assert "neither a recipe nor a preset; did you mean 'mine.yaml'?" in capsys.readouterr().err


def test_a_rank_of_an_accelerator(capsys: pytest.CaptureFixture[str]) -> None:
    options = shlex.split(
        "--no-probe --batch-size 8 --seq-len 256 --shard 4 --tensor-parallel 2 --pipeline 2 "
        "--micro-batches 4 --interleave 2 --context-parallel 2 --recompute blocks --hardware h100 "
        "--bandwidth 12.5 --intra-node-bandwidth 100 --nproc-per-node 4"
    )
    assert main(["estimate", "gpt2", *options, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    rank = tree["rank"]
    assert tree["precision"] == "bf16" and tree["traffic"]["ranks"] == 4 * 2 * 2 * 2
    assert (rank["hardware"]["name"], rank["recompute"]) == ("h100", "blocks")
    links = ("bandwidth", "intra_node_bandwidth", "nproc_per_node", "interleave", "shard")
    assert [rank["layout"][name] for name in links] == [12.5e9, 100e9, 4, 2, 4]
    # 6 of 12 layers on 2 rows of 128 tokens, of 2 + 1 / 2 micro-batches, in 2 shares
    kept = estimate_training_memory(
        preset_config("gpt2", 50257), BatchShape(2, 128), Choice("adamw"), precision="bf16", recompute=True
    ).activations
    assert kept is not None and kept > 12 * 2 * 128 * 768 * 4
    assert rank["memory"]["activations"] == kept / 2 * 2.5 / 2
    assert rank["time"]["total"] > rank["time"]["compute"] > 0
    assert main(["estimate", "gpt2", *options]) == 0
    out = capsys.readouterr().out
    assert "memory of a rank, at most, recompute blocks" in out and "of the 80 GB of h100" in out
    assert "time of an update on h100, bf16" in out and "exposed: tensor" in out


def test_hardware_alone_is_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "--no-probe", "--seq-len", "64", "--hardware", "a100"]) == 0
    out = capsys.readouterr().out
    assert "sent per rank" not in out and "memory of a rank, at most\n" in out and "MFU" in out
    assert main(["estimate", "gpt2", "--no-probe", "--batch-size", "256", "--hardware", "a100"]) == 0
    assert "more than the 80 GB of a100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hardware", "h10"], "unknown hardware 'h10'; did you mean 'h100'?"),
        (["--recompute", "block"], "--recompute: 'block' is not one of 'none', 'selective', 'blocks'"),
        (["--shard", "0"], "0"),
        (["--pipeline", "2", "--micro-batches", "3", "--interleave", "2", "--batch-size", "3"], "a multiple"),
    ],
)
def test_a_layout_that_cannot_be(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "--no-probe", "--seq-len", "32", *options]) == 2
    assert said in capsys.readouterr().err
