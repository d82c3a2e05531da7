"""Ways to go on from a run, side by side: it gives sizes, weights and tokens, and a teacher may look on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from polyhead.cli import main
from polyhead.compare.budget import Budget
from polyhead.compare.plan import make_plan
from polyhead.compare.run import find_changed_keys, prepare_comparison
from polyhead.compare.sweep import Axis, resolve_key
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import open_text
from polyhead.models import build
from polyhead.run.load import load
from polyhead.run.run import Run

BASE = """
task: language-model
data: {train: train.en, valid: valid.en, max_len: 8}
train: {steps: 8, max_tokens: 24, lr: 1e-2, precision: fp32, schedule: {name: constant, warmup: 1}, threads: 1}
"""  # noqa: E501
MODEL = (
    "model: {d_model: 16, n_layers: 2, n_heads: 2, d_ff: 32, max_len: 12, position: learned, dropout: 0}\n"
)


@pytest.fixture
def begun(place: Path) -> Path:
    """As ``place``, with two trained runs and a recipe that begins with the first."""
    for name, kind in (("one", "char"), ("two", "byte")):
        (place / f"{name}.yaml").write_text(f"{BASE}{MODEL}tokenizer: {{kind: {kind}}}\n")
        assert main(["train", f"{name}.yaml", f"out={name}"]) == 0
    (place / "tune.yaml").write_text(f"{BASE}init_from: one\n")
    return place


def compared(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    """The rows of a comparison by name."""
    assert main(["compare", "tune.yaml", *options]) == 0
    capsys.readouterr()
    return {
        row["name"]: row for row in json.loads(Path("runs/compare-tune/compare.json").read_text())["rows"]
    }


@pytest.mark.usefixtures("begun", "in_process", "unjudged")
def test_designs_begin_with_the_weights_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("one", "copy")
    half = "half: init_from={run: one, layer_stride: 2}"
    rows = compared(
        capsys, "train.lr=1e-12", "--budget", "1steps", "--vary", "init_from=two,copy", "--design", half
    )
    text = open_text([Path("valid.en")], "file")
    for name, run in (("base", "one"), ("init_from=two", "two")):
        assert rows[name]["loss"] == pytest.approx(load(run).measure_perplexity(text).loss, rel=1e-5)
        assert rows[name]["parameters"] == sum(p.numel() for p in load(run).model.parameters())
    assert rows["half"]["parameters"] < rows["base"]["parameters"]
    assert rows["half"]["loss_p"] is not None
    assert rows["init_from=copy"]["loss_p"] == 1.0
    assert rows["init_from=two"]["loss_p"] is None  # its tokens are others
    assert rows["init_from=two"]["bits_per_char_p"] is None


@pytest.mark.usefixtures("begun", "in_process")
def test_designs_begin_with_a_run_of_the_hub(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead.run.load.fetch_checkpoint", {"somebody/one": Path("one")}.__getitem__)
    same = ["train.lr=1e-12", "--budget", "1steps"]
    rows = compared(capsys, "init_from=somebody/one", *same)
    assert rows["base"]["loss"] == pytest.approx(
        load("one").measure_perplexity(open_text([Path("valid.en")], "file")).loss, rel=1e-5
    )


@pytest.mark.usefixtures("begun", "in_process")
def test_a_model_may_have_more_rows_than_its_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    one = load("one")
    config = one.config.model_copy(update={"vocab_size": one.config.vocab_size + 5})
    Run(build(config, 1), one.tokenizer, one.generation).save(Path("wide"))
    rows = compared(capsys, "init_from=wide", "--budget", "1steps", "--vary", "lr=1e-3")
    assert rows["base"]["parameters"] == sum(p.numel() for p in load("wide").model.parameters())


@pytest.mark.usefixtures("begun", "in_process")
def test_adapters_frozen_parts_and_rates_are_designs(capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["lr=1e-3", "freeze=[embedding]", "lora={r: 2, target_modules: [attn]}"]
    rows = compared(capsys, *(word for one in vary for word in ("--vary", one)))
    assert len({row["loss"] for row in rows.values()}) == 4
    assert all(row["loss_p"] is not None for row in rows.values() if not row["base"])
    assert len({row["parameters"] for row in rows.values()}) == 1  # adapters are merged
    spent = {name: row["times_forward"] for name, row in rows.items()}
    assert spent == dict.fromkeys(rows, 3) | {vary[2]: 2}


@pytest.mark.usefixtures("begun", "in_process")
def test_a_teacher_is_part_of_a_design(capsys: pytest.CaptureFixture[str]) -> None:
    rows = compared(
        capsys,
        "--vary",
        "distill={teacher: one}",
        "--design",
        "warm: distill.teacher=one distill.temperature=4",
    )
    names = ["base", "distill={teacher: one}", "warm"]
    assert len({rows[name]["loss"] for name in names}) == 3
    cell = Path("runs/compare-tune/cells/warm.s1")
    assert json.loads((cell / "cell.json").read_text())["recipe"]["distill"]["temperature"] == 4


@pytest.mark.usefixtures("begun", "in_process")
def test_what_does_not_go_together_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "tune.yaml", "--vary", "d_ff=16", "--match", "params"]) == 2
    assert "a design with init_from keeps the sizes of that run" in capsys.readouterr().err
    assert main(["compare", "tune.yaml", "init_from=nowhere", "--vary", "lr=1e-3"]) == 2
    assert (
        capsys.readouterr().err
        == "polyhead: init_from.run: no run directory 'nowhere'; a run on the Hugging Face hub is "
        "named owner/name\n"
    )
    for vary, key in (
        ("init_from=nowhere", "init_from.run"),
        ("distill={teacher: nowhere}", "distill.teacher"),
    ):
        assert main(["compare", "tune.yaml", "--vary", vary, "--plan"]) == 2
        assert (
            capsys.readouterr().err
            == f"polyhead: {key}: no run directory 'nowhere'; a run on the Hugging Face hub is named "
            "owner/name\n"
        )
    assert main(["compare", "tune.yaml", "data.train=nowhere.txt", "--vary", "lr=1e-3"]) == 2
    assert "nowhere.txt" in capsys.readouterr().err
    assert main(["compare", "tune.yaml", "train.freeze=[embeding]", "--vary", "lr=1e-3", "--plan"]) == 2
    assert "is named 'embeding'; did you mean 'embedding'?" in capsys.readouterr().err
    rows = compared(capsys, "--vary", "d_model=32", "--vary", "data.max_len=13", "--budget", "1steps")
    assert rows["d_model=32"]["status"] == "refused"
    assert rows["max_len=13"]["status"] == "failed"
    assert "rows do not fit" in rows["max_len=13"]["message"]


@pytest.mark.usefixtures("begun")
def test_a_cell_that_was_made_for_another_start_is_another_cell() -> None:
    plan = prepare_comparison(
        make_plan(
            Path("tune.yaml"),
            [],
            [Axis("init_from", ("two",))],
            [],
            full_grid=False,
            budget=Budget("recipe"),
            seeds=1,
            match=False,
            out=None,
        )
    )
    one, two = (row.recipe for row in plan.designs)
    assert one is not None and two is not None
    assert one.model.n_layers == 2
    assert find_changed_keys(one.model_dump(mode="json"), one) == []
    assert find_changed_keys(
        one.model_dump(mode="json"), two.model_copy(update={"tokenizer": one.tokenizer})
    ) == ["init_from"]


def test_keys_outside_the_sections() -> None:
    assert [resolve_key(key, "--vary") for key in ("init_from", "init_from.layer_stride",
        "distill.temperature", "task.mask")] == [
        "init_from", "init_from.layer_stride", "distill.temperature", "task.mask",
    ]  # fmt: skip
    with pytest.raises(
        UserError,
        match=re.escape(
            "--vary task: all designs have the same task; its options can be varied, e.g. task.mask"
        ),
    ):
        resolve_key("task", "--vary")
