"""The report of a run of each task, of several runs, and of a run in training, in a browser."""

import json
import os
import shutil
import socket
import threading

import pytest
from tests.browser.conftest import check_accessibility, mark_slow
from tests.train.task_runs import TASKS, task_recipe, write_texts

from polyhead.core.atomic_io import process_start_time
from polyhead.core.i18n import use_language
from polyhead.serve.http.run_pages import RunServer
from polyhead.serve.http.sockets import get_url, listen
from polyhead.train.run_training import run_training
from polyhead.viz.run_page import render_run_page, render_runs_page
from polyhead.viz.run_record import read_run

pytestmark = pytest.mark.timeout(600)
DEFAULT_TASKS = ("translation", "classification", "denoising")  # the other ones are slow


@pytest.fixture(scope="module")
def train_task(tmp_path_factory):
    """A function that trains on a task, once; the directory of the run."""
    directory = tmp_path_factory.mktemp("reports")
    write_texts(directory)

    def train_one(task):
        run_dir = directory / "runs" / task
        if not run_dir.exists():
            run_training(task_recipe(directory, task, run_dir, steps=9))
        return run_dir

    return train_one


def copy_run(run_dir, target):
    shutil.copytree(run_dir, target, ignore=shutil.ignore_patterns("checkpoints", "data"))


@pytest.fixture
def run_server(train_task, tmp_path):
    """A directory with one run, and the URL of its pages."""
    copy_run(train_task("translation"), tmp_path / "runs/mine")
    sock, ready = listen("127.0.0.1", 0), threading.Event()
    server = RunServer(tmp_path / "runs", ready.set)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    assert ready.wait(100)
    yield tmp_path / "runs", get_url(sock)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive(), "the server has not ended within a minute"


@pytest.mark.parametrize("task", mark_slow(TASKS, *DEFAULT_TASKS))
def test_report_of_task(task, train_task, open_page):
    page = open_page(train_task(task) / "report.html")
    headings = {"Result", "Loss", "Predicted and actual time", "Examples", "Errors by group", "Recipe"}
    assert headings <= set(page.locator("h2").all_inner_texts())
    chart = page.locator("figure.plot svg.chart").first
    chart.scroll_into_view_if_needed()
    chart.hover(position={"x": 60, "y": 60})
    assert page.locator(".spot[visibility=visible]").count() == 2  # training and validation
    page.get_by_text("All keys of the recipe").click()
    assert page.get_by_text("train.max_tokens", exact=True).is_visible()
    if task != "denoising":
        page.get_by_role("combobox").last.select_option(index=0)
        assert page.locator(".attention .heat").is_visible()
    check_accessibility(page)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_differences_are_colored(language, train_task, tmp_path, open_page):
    record = read_run(train_task("translation"))
    example = {"source": "ein roter hund", "output": "a blue dog", "reference": "a red dog"}
    record.report["samples"]["examples"] = [example, {**example, "output": "a red dog"}]
    with use_language(language):
        (tmp_path / "page.html").write_text(render_run_page(record), encoding="utf-8")
    page = open_page(tmp_path / "page.html")
    assert page.locator("html").get_attribute("lang") == language
    assert page.locator("del").all_inner_texts() == ["blue"]
    assert page.locator("ins").all_inner_texts() == ["red"]
    if language == "en":
        assert "1 of these 2 equal their reference." in page.locator("main").inner_text()
    else:
        headings = page.locator("h2").all_inner_texts()
        assert headings[:5] == ["结果", "损失", "指标、学习率和速度", "计划与实际", "示例"]
        assert page.locator("thead th").nth(1).inner_text() == "原文"
    check_accessibility(page)


@pytest.mark.parametrize("first", ["en", "zh"])
def test_language_and_theme_are_switched(first, train_task, tmp_path, open_page):
    """The switched page reads as one that was written in the other language; the next page follows."""
    record, second = read_run(train_task("translation")), {"en": "zh", "zh": "en"}[first]
    for language in ("en", "zh"):
        with use_language(language):
            (tmp_path / f"{language}.html").write_text(render_run_page(record), encoding="utf-8")
    page = open_page(tmp_path / f"{second}.html")
    expected, title = page.locator("main").inner_text(), page.title()
    page = open_page(tmp_path / f"{first}.html")
    assert page.locator("main").inner_text() != expected
    with page.expect_navigation():
        page.get_by_role("button", name={"en": "English", "zh": "中文"}[second], exact=True).click()
    assert page.locator("html").get_attribute("lang") == second
    assert (page.locator("main").inner_text(), page.title()) == (expected, title)
    colors = "['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name])"
    light = page.evaluate(colors)
    page.get_by_role("button", name={"en": "Dark", "zh": "深色"}[second], exact=True).click()
    assert page.evaluate(colors) != light
    check_accessibility(page)
    dark = page.evaluate(colors)
    page.goto((tmp_path / f"{second}.html").as_uri())
    assert (page.evaluate(colors), page.locator("html").get_attribute("lang")) == (dark, second)
    with page.expect_navigation():
        page.get_by_role("button", name={"en": "English", "zh": "中文"}[first], exact=True).click()
    assert page.locator("html").get_attribute("lang") == first


def test_several_runs_share_charts(train_task, tmp_path, open_page):
    records = [read_run(train_task(task)) for task in DEFAULT_TASKS]
    (tmp_path / "several.html").write_text(render_runs_page(records))
    page = open_page(tmp_path / "several.html")
    figure = page.locator("figure.plot").first
    assert [text.split()[0] for text in figure.locator(".key").all_inner_texts()] == list(DEFAULT_TASKS)
    assert figure.locator("svg").first.locator(".curve").count() == 3
    check_accessibility(page)


def test_page_follows_training_without_reload(run_server, open_page):
    directory, url = run_server
    run_dir = directory / "mine"
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
    (run_dir / "run.lock").write_text(json.dumps(owner))
    page = open_page(f"{url}/runs/mine")
    page.get_by_text("This page updates itself.").wait_for()
    page.get_by_text("All keys of the recipe").click()
    check_accessibility(page)
    page.evaluate("window.isSamePage = true")
    row = read_run(run_dir).rows("train")[-1] | {"step": 10, "steps": 20, "nll": 0.123, "seconds": 99.0}
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    page.get_by_text("Training: step 10 of 20.").wait_for()
    loss = page.locator("figure.plot").first
    assert "0.123" in loss.locator(".key").first.inner_text()
    loss.locator("svg").first.hover(position={"x": 60, "y": 60})
    assert loss.locator(".spot[visibility=visible]").count() == 2  # the new chart reacts to the pointer
    assert page.get_by_text("train.max_tokens", exact=True).is_visible()  # details stay open
    assert page.evaluate("window.isSamePage")
    (run_dir / "run.lock").unlink()
    page.get_by_text("Training is done: 20 steps.").wait_for()
    assert page.locator(".news").inner_text() == ""


def test_index_links_and_compares_runs(run_server, train_task, open_page):
    directory, url = run_server
    page = open_page(url)
    copy_run(train_task("denoising"), directory / "other")
    page.get_by_role("link", name="other").wait_for()  # added without a reload
    check_accessibility(page)
    for name in ("other", "mine"):
        page.get_by_role("checkbox", name=f"Compare {name}").check()
    page.get_by_role("button", name="Compare the selected runs").click()
    page.get_by_role("heading", name="2 runs").wait_for()
    page.go_back()
    page.get_by_role("link", name="mine").click()
    page.get_by_role("heading", name="mine").wait_for()
