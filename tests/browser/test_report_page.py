"""The report of a run of each task, of several runs, and of a run that trains, in a browser."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility
from tests.train.conftest import Notes
from tests.train.task_runs import TASKS, task_recipe, write_texts

from polyhead.core.i18n import set_language
from polyhead.core.process_liveness import process_start_time
from polyhead.serve.http.run_pages import RunServer
from polyhead.serve.http.sockets import get_url, listen
from polyhead.train.run_training import run_training
from polyhead.viz.run_page import render_run_page
from polyhead.viz.run_record import read_run
from polyhead.viz.runs_page import render_runs_page

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each task."""
    place = tmp_path_factory.mktemp("reports")
    write_texts(place)
    for task in TASKS:
        run_training(task_recipe(place, task, place / "runs" / task, steps=9), report=Notes())
    return place / "runs"


@pytest.fixture
def served(runs: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory with one run, and where its pages are."""
    keep = shutil.ignore_patterns("checkpoints", "data")
    shutil.copytree(runs / "translation", tmp_path / "runs/mine", ignore=keep)
    sock, ready = listen("127.0.0.1", 0), threading.Event()
    server = RunServer(tmp_path / "runs", ready.set)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    assert ready.wait(30)
    yield tmp_path / "runs", get_url(sock)
    server.should_exit = True
    thread.join(30)


@pytest.mark.parametrize("task", TASKS)
def test_the_report_of_each_task_works_and_has_no_barrier(
    task: str, runs: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(runs / task / "report.html")
    headings = page.locator("h2").all_inner_texts()
    for heading in ("Result", "Loss", "Predicted and actual time", "Examples", "Errors by group", "Recipe"):
        assert heading in headings
    chart = page.locator("figure.plot svg.chart").first
    chart.scroll_into_view_if_needed()
    chart.hover(position={"x": 60, "y": 60})
    assert page.locator(".spot[visibility=visible]").count() == 2  # training and validation
    page.get_by_text("All keys of the recipe").click()
    assert page.get_by_text("train.max_tokens", exact=True).is_visible()
    if task != "denoising":
        page.get_by_role("combobox").last.select_option(index=0)
        assert page.locator(".attention .heat").is_visible()
    check_accessibility(page, *(SCREENS if task == "translation" else CORNERS))


def test_differences_are_coloured(runs: Path, tmp_path: Path, open_page: Callable[..., Any]) -> None:
    record = read_run(runs / "translation")
    example = {"source": "ein roter hund", "output": "a blue dog", "reference": "a red dog"}
    record.report["samples"]["examples"] = [example, {**example, "output": "a red dog"}]
    (tmp_path / "page.html").write_text(render_run_page(record), encoding="utf-8")
    page = open_page(tmp_path / "page.html")
    assert page.locator("del").all_inner_texts() == ["blue"]
    assert page.locator("ins").all_inner_texts() == ["red"]
    assert "1 of these 2 equal their reference." in page.locator("main").inner_text()
    check_accessibility(page)


def test_several_runs_share_charts(runs: Path, tmp_path: Path, open_page: Callable[..., Any]) -> None:
    names = ("translation", "language-model", "denoising")
    (tmp_path / "several.html").write_text(render_runs_page([read_run(runs / name) for name in names]))
    page = open_page(tmp_path / "several.html")
    legend = page.locator("figure.plot").first.locator(".key").all_inner_texts()
    assert [text.split()[0] for text in legend] == list(names)
    assert page.locator("figure.plot").first.locator("svg").first.locator(".curve").count() == 3
    check_accessibility(page)


def test_the_pages_are_chinese_where_asked(runs: Path, tmp_path: Path, open_page: Callable[..., Any]) -> None:
    set_language("zh")
    try:
        (tmp_path / "zh.html").write_text(render_run_page(read_run(runs / "translation")), encoding="utf-8")
    finally:
        set_language(None)
    page = open_page(tmp_path / "zh.html", locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh"
    headings = page.locator("h2").all_inner_texts()
    assert headings[:5] == ["结果", "损失", "指标、学习率和速度", "计划与实际", "示例"]
    assert page.locator("thead th").nth(1).inner_text() == "原文"
    check_accessibility(page, SCREENS[0])


def test_a_page_follows_its_training(served: tuple[Path, str], open_page: Callable[..., Any]) -> None:
    directory, place = served
    run = directory / "mine"
    mine = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
    (run / "run.lock").write_text(json.dumps(mine))
    page = open_page(f"{place}/runs/mine")
    page.get_by_text("This page updates itself.").wait_for()
    page.get_by_text("All keys of the recipe").click()
    check_accessibility(page, SCREENS[0], SCREENS[3])
    page.evaluate("window.kept = true")
    row = read_run(run).rows("train")[-1] | {"step": 10, "steps": 20, "nll": 0.123, "seconds": 99.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    page.get_by_text("Training: step 10 of 20.").wait_for()
    loss = page.locator("figure.plot").first
    assert "0.123" in loss.locator(".key").first.inner_text()
    loss.locator("svg").first.hover(position={"x": 60, "y": 60})
    assert loss.locator(".spot[visibility=visible]").count() == 2  # the new chart answers the pointer too
    assert page.get_by_text("train.max_tokens", exact=True).is_visible()  # what was opened is open
    assert page.evaluate("window.kept")  # without loading the page anew
    (run / "run.lock").unlink()
    page.get_by_text("Training is done: 20 steps.").wait_for()
    assert page.locator(".news").inner_text() == ""


def test_the_index_leads_to_runs_and_compares_them(
    served: tuple[Path, str], runs: Path, open_page: Callable[..., Any]
) -> None:
    directory, place = served
    page = open_page(place)
    keep = shutil.ignore_patterns("checkpoints", "data")
    shutil.copytree(runs / "chat", directory / "talks", ignore=keep)
    page.get_by_role("link", name="talks").wait_for()  # it appears by itself
    check_accessibility(page)
    page.get_by_role("checkbox", name="Compare talks").check()
    page.get_by_role("checkbox", name="Compare mine").check()
    page.get_by_role("button", name="Compare the selected runs").click()
    page.get_by_role("heading", name="2 runs").wait_for()
    page.go_back()
    page.get_by_role("link", name="mine").click()
    page.get_by_role("heading", name="mine").wait_for()
