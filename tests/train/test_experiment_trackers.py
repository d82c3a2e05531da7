"""What wandb and mlflow get: their modules are replaced by fakes, and compared with metrics.jsonl."""

import json
import sys
from types import SimpleNamespace

import pytest
from tests.train.conftest import Notes, with_train
from tests.train.task_runs import task_recipe, write_texts

from polyhead.cli import main
from polyhead.run.recipe import load_recipe
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.usefixtures("no_report")


class FakeWandB(SimpleNamespace):
    """The part of wandb that is used."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(inits=[], rows=[], metrics=[], n_finished=0, fails=fails)

    def init(self, **options):
        self.inits.append(options)
        self.id = options["id"] or "abc123"
        return self

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, row):
        if self.fails:
            raise ConnectionError("no network")
        self.rows.append(row)

    def finish(self):
        self.n_finished += 1


class FakeMLflow(SimpleNamespace):
    """The part of mlflow that is used."""

    def __init__(self) -> None:
        super().__init__(experiments=[], starts=[], parameters=[], rows=[], n_ended=0)

    def set_experiment(self, name):
        self.experiments.append(name)

    def start_run(self, run_id, run_name):
        self.starts.append((run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "f00"))

    def log_params(self, parameters):
        self.parameters.append(parameters)

    def log_metrics(self, values, step):
        self.rows.append({**values, "step": step})

    def end_run(self):
        self.n_ended += 1


@pytest.fixture
def recipe(tmp_path):
    write_texts(tmp_path)
    return task_recipe(tmp_path, "translation", tmp_path / "mine", log=None)


def assert_all_metrics(rows, run_dir):
    """All numbers of metrics.jsonl, under the names of their splits, in order."""
    logged = read_metrics(run_dir / "metrics.jsonl")
    assert len(rows) == len(logged) > 3
    for actual, row in zip(rows, logged, strict=True):
        numbers = {key: value for key, value in row.items() if key not in ("step", "steps", "split")}
        expected = {"step": row["step"]} | {f"{row['split']}/{key}": value for key, value in numbers.items()}
        assert actual == pytest.approx(expected, rel=1e-6)


def test_wandb_gets_all_metrics_and_resumes_its_run(recipe, monkeypatch):
    first, second = FakeWandB(), FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", first)
    recipe = with_train(recipe, log="wandb")
    run_training(recipe, report=Notes())
    assert_all_metrics(first.rows, recipe.out)
    assert first.metrics == [("*", "step")] and first.n_finished == 1
    (init,) = first.inits
    expected = {"project": "polyhead", "name": "mine", "id": None, "dir": str(recipe.out)}
    assert expected.items() <= init.items()
    assert init["config"]["model"]["d_model"] == 16
    monkeypatch.setitem(sys.modules, "wandb", second)
    run_training(with_train(recipe, steps=8), resume=True, report=Notes())
    assert second.inits[0]["id"] == "abc123"
    assert [row["step"] for row in second.rows] == [8, 8]


def test_mlflow_gets_all_metrics_and_the_recipe(recipe, monkeypatch):
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    recipe = with_train(recipe, log="mlflow")
    run_training(recipe, report=Notes())
    assert_all_metrics(fake.rows, recipe.out)
    assert (fake.experiments, fake.starts, fake.n_ended) == (["polyhead"], [(None, "mine")], 1)
    parameters = {key: value for batch in fake.parameters for key, value in batch.items()}
    assert parameters["train.lr"] == "0.005" and parameters["task.name"] == "translation"
    assert all(len(batch) <= 100 for batch in fake.parameters)
    assert json.loads((recipe.out / "tracker.json").read_text()) == {"mlflow": "f00"}


def test_failing_tracker_is_a_warning(recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", FakeWandB(fails=True))
    notes = Notes()
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


def test_unknown_tracker_is_refused(capsys, tmp_path):
    assert main(["train", str(tmp_path / "mine.yaml"), "--log", "neptune"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("'neptune'", "wandb", "mlflow"))
