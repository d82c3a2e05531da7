"""What wandb and mlflow would get: their modules are replaced by ones that remember, and compared with
metrics.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.run.recipe import load_recipe
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.usefixtures("unsynced")


class FakeWandB(SimpleNamespace):
    """The part of wandb that is used."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(inits=[], rows=[], metrics=[], finished=0, fails=fails)

    def init(self, **given: Any) -> FakeWandB:
        self.inits.append(given)
        self.id = given["id"] or "abc123"
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        if self.fails:
            raise ConnectionError("no network")
        self.rows.append(row)

    def finish(self) -> None:
        self.finished += 1


class FakeMLflow(SimpleNamespace):
    """The part of mlflow that is used."""

    def __init__(self) -> None:
        super().__init__(experiments=[], starts=[], parameters=[], rows=[], ended=0)

    def set_experiment(self, name: str) -> None:
        self.experiments.append(name)

    def start_run(self, run_id: str | None, run_name: str) -> Any:
        self.starts.append((run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "f00"))

    def log_params(self, parameters: dict[str, str]) -> None:
        self.parameters.append(parameters)

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.rows.append({**values, "step": step})

    def end_run(self) -> None:
        self.ended += 1


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    write_texts(tmp_path)
    return task_recipe(tmp_path, "translation", tmp_path / "mine", log=None)


def check_rows(rows: list[dict[str, float]], out: Path) -> None:
    """All numbers of metrics.jsonl, under the names of their splits, in order."""
    logged = read_metrics(out / "metrics.jsonl")
    wanted = [
        {"step": row["step"]}
        | {f"{row['split']}/{k}": v for k, v in row.items() if k not in ("step", "steps", "split")}
        for row in logged
    ]
    assert len(rows) == len(wanted) > 3
    for got, row in zip(rows, wanted, strict=True):
        assert got == pytest.approx(row, rel=1e-6)


def with_log(recipe: Recipe, log: str) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"log": log})})


def test_wandb_gets_every_number_and_goes_on_in_its_run(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", first)
    recipe = with_log(recipe, "wandb")
    run_training(recipe, report=Notes())
    check_rows(first.rows, recipe.out)
    assert first.metrics == [("*", "step")] and first.finished == 1
    (begun,) = first.inits
    assert (begun["project"], begun["name"], begun["id"], begun["dir"]) == (
        "polyhead",
        "mine",
        None,
        str(recipe.out),
    )
    assert begun["config"]["model"]["d_model"] == 16
    second = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", second)
    longer = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 8})})
    run_training(longer, resume=True, report=Notes())
    assert second.inits[0]["id"] == "abc123"
    assert [row["step"] for row in second.rows] == [8, 8]


def test_mlflow_gets_every_number_and_the_recipe(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    recipe = with_log(recipe, "mlflow")
    run_training(recipe, report=Notes())
    check_rows(fake.rows, recipe.out)
    assert (fake.experiments, fake.starts, fake.ended) == (["polyhead"], [(None, "mine")], 1)
    parameters = {key: value for some in fake.parameters for key, value in some.items()}
    assert parameters["train.lr"] == "0.005" and parameters["task.name"] == "translation"
    assert all(len(some) <= 100 for some in fake.parameters)
    assert json.loads((recipe.out / "tracker.json").read_text()) == {"mlflow": "f00"}


def test_a_tracker_that_fails_ends_no_training(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandB(fails=True))
    notes = Notes()
    _, outcome = run_training(with_log(recipe, "wandb"), report=notes)
    assert outcome.status == "done"
    said = [line for line in notes.said if "rejected" in line]
    assert said == ["warning: WandB rejected the metrics: no network"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_option_is_the_key_and_a_missing_package_is_named(
    name: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    (tmp_path / "mine.yaml").write_text(recipe.dump_yaml())
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["train", str(tmp_path / "mine.yaml"), "--log", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith(f"polyhead: this needs {name}: ") and f"[{name}]" in line and "install" in line
    assert load_recipe(tmp_path / "mine.yaml", [f"train.log={name}"]).train.log == name


def test_another_tracker_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", str(tmp_path / "mine.yaml"), "--log", "neptune"]) == 2
    assert "'neptune'" in (err := capsys.readouterr().err) and "wandb" in err and "mlflow" in err
