"""Tests of cli/report.py: the page of one run, without its model."""

import shutil

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead.train.run_training import run_training


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    write_texts(directory)
    run_training(task_recipe(directory, "translation", directory / "run"), report=Notes())
    return directory / "run"


def read_page(path):
    return Page(path.read_text())


def test_page_is_that_of_the_training(run_dir, tmp_path, cli):
    """Also without the weights."""
    path = tmp_path / "page.html"
    for name in ("metrics.jsonl", "recipe.yaml", "report.json", "README.md"):
        shutil.copy(run_dir / name, tmp_path)
    assert cli("report", run_dir, "--output", path).out == f"report: {path}\n"
    cli("report", tmp_path)
    actual, expected = read_page(path), read_page(run_dir / "report.html")
    assert actual.data() == expected.data() == read_page(tmp_path / "report.html").data()
    assert actual.words() == expected.words()
    copy = shutil.copytree(run_dir, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "data"))
    text = (copy / "README.md").read_text()
    row = "| baseline \\| copied source | 1.25 |\n| valid loss |"
    (copy / "README.md").write_text(text.replace("| valid loss |", row))
    cli("report", copy)
    words = [text for tag, text in read_page(copy / "report.html").texts if tag in ("dt", "dd")]
    assert words[words.index("baseline | copied source") + 1] == "1.25"
    message = cli.error("report", *[run_dir] * 13, "--output", tmp_path / "x.html")
    assert message == "13 runs; a chart shows at most 12: pass fewer"
    path = run_dir / "metrics.jsonl"
    message = f"--output {path} is an input and would be overwritten; choose another file"
    assert cli.error("report", run_dir, "--output", path) == message
