"""What wandb and mlflow get: their modules are replaced by fakes, and compared with metrics.jsonl."""

import json
import sys
from unittest.mock import Mock

import pytest
from tests.train.conftest import Notes, with_train
from tests.train.task_runs import task_recipe, write_texts

from polyhead.cli import main
from polyhead.run.recipe import load_recipe
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.usefixtures("no_report")


def fake_wandb():
    wandb = Mock()
    run = wandb.init.return_value
    wandb.init.side_effect = lambda **options: setattr(run, "id", options["id"] or "abc123") or run
    return wandb


@pytest.fixture
def recipe(tmp_path):
    write_texts(tmp_path)
    return task_recipe(tmp_path, "translation", tmp_path / "mine", log=None)


def assert_all_metrics(rows, run_dir):
    """All numbers of metrics.jsonl, under the names of their splits, in order."""
    logged_rows = read_metrics(run_dir / "metrics.jsonl")
    assert len(rows) == len(logged_rows) > 3
    for actual, row in zip(rows, logged_rows, strict=True):
        numbers = {key: value for key, value in row.items() if key not in ("step", "steps", "split")}
        expected = {"step": row["step"]} | {f"{row['split']}/{key}": value for key, value in numbers.items()}
        assert actual == pytest.approx(expected, rel=1e-6)


def test_wandb_gets_all_metrics_and_resumes_its_run(recipe, monkeypatch):
    first, second = fake_wandb(), fake_wandb()
    monkeypatch.setitem(sys.modules, "wandb", first)
    recipe = with_train(recipe, log="wandb")
    run_training(recipe, report=Notes())
    run = first.init.return_value
    assert_all_metrics([c.args[0] for c in run.log.call_args_list], recipe.out)
    run.define_metric.assert_called_once_with("*", step_metric="step")
    run.finish.assert_called_once_with()
    options = first.init.call_args.kwargs
    expected = {"project": "polyhead", "name": "mine", "id": None, "dir": str(recipe.out)}
    assert expected.items() <= options.items()
    assert options["config"]["model"]["d_model"] == 16
    monkeypatch.setitem(sys.modules, "wandb", second)
    run_training(with_train(recipe, steps=8), resume=True, report=Notes())
    assert second.init.call_args.kwargs["id"] == "abc123"
    assert [c.args[0]["step"] for c in second.init.return_value.log.call_args_list] == [8, 8]


def test_mlflow_gets_all_metrics_and_the_recipe(recipe, monkeypatch):
    mlflow = Mock()
    mlflow.start_run.return_value.info.run_id = "f00"
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    recipe = with_train(recipe, log="mlflow")
    run_training(recipe, report=Notes())
    rows = [{**c.args[0], **c.kwargs} for c in mlflow.log_metrics.call_args_list]
    assert_all_metrics(rows, recipe.out)
    mlflow.set_experiment.assert_called_once_with("polyhead")
    mlflow.start_run.assert_called_once_with(run_id=None, run_name="mine")
    mlflow.end_run.assert_called_once_with()
    batches = [c.args[0] for c in mlflow.log_params.call_args_list]
    parameters = {key: value for batch in batches for key, value in batch.items()}
    assert parameters["train.lr"] == "0.005" and parameters["task.name"] == "translation"
    assert all(len(batch) <= 100 for batch in batches)
    assert json.loads((recipe.out / "tracker.json").read_text()) == {"mlflow": "f00"}


def test_failing_tracker_is_a_warning(recipe, monkeypatch):
    wandb, notes = fake_wandb(), Notes()
    wandb.init.return_value.log.side_effect = ConnectionError("no network")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    _, outcome = run_training(with_train(recipe, log="wandb"), report=notes)
    assert outcome.status == "done"
    warnings = [line for line in notes.lines if "rejected" in line]
    assert warnings == ["warning: WandB rejected the metrics: no network"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_package_of_tracker_is_an_error(name, recipe, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text(recipe.dump_yaml())
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["train", str(tmp_path / "mine.yaml"), "--log", name]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"polyhead: this needs {name}: ") and f"[{name}]" in line and "install" in line
    assert load_recipe(tmp_path / "mine.yaml", [f"train.log={name}"]).train.log == name
    assert main(["train", str(tmp_path / "mine.yaml"), "--log", "neptune"]) == 2
    error = capsys.readouterr().err
    assert all(text in error for text in ("'neptune'", "wandb", "mlflow"))
