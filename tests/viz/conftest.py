import pytest
from tests.train.task_runs import task_recipe, write_texts

from polyhead.train.run_training import run_training


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    write_texts(directory)
    for name, lr in (("slow", 1e-3), ("quick", 1e-2)):
        run_training(task_recipe(directory, "translation", directory / "runs" / name, lr=lr))
    return directory / "runs"
