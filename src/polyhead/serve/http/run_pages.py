"""Web pages of the training runs in a directory: an index, a page per run, and a comparison.

No model is loaded. Every two seconds a page polls the version of its content, which is derived from the
modification times of a few files, and reloads when the version has changed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_fact, translate_message
from polyhead.core.output_paths import did_you_mean_path
from polyhead.serve.auth import is_loopback, parse_host
from polyhead.viz.html_page import PageSection, scroll_region
from polyhead.viz.run_page import (
    MAX_RUNS,
    STATE_TITLES,
    LiveVersion,
    final_measures,
    render_document,
    render_run_page,
    render_runs_page,
    runs_table,
)
from polyhead.viz.run_record import METRICS, REPORT, display_name, is_training, read_run

HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    # in addition to the policy in each page
    "content-security-policy": "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}
log = logging.getLogger("polyhead.serve")


def check_runs(directory: Path) -> None:
    """Check that the directory can contain runs; a run itself is rejected with a hint."""
    if not directory.is_dir():
        hint = did_you_mean_path(directory, "*/") or "; expected one with runs, such as runs/"
        raise UserError(f"--runs {directory} is not a directory{hint}")
    if (directory / METRICS).is_file() or (directory / "config.json").is_file():
        raise UserError(
            f"--runs {directory} is a run; expected the directory that contains it "
            f"({directory.resolve().parent}), or write its page: polyhead report {directory}"
        )


def find_runs(directory: Path) -> list[Path]:
    """Return the runs in the directory, the most recently written first."""
    runs = [metrics.parent for metrics in directory.glob(f"*/{METRICS}") if os.path.isfile(metrics)]
    return sorted(runs, key=lambda run: (-(run / METRICS).stat().st_mtime, run.name))


def get_runs_version(runs: Sequence[Path]) -> dict[str, Any]:
    """Return the version of the content of these runs, and whether any of them is training now."""
    stamps = []
    for run in runs:
        files = (run / name for name in (METRICS, REPORT, "README.md"))
        stamps.append([run.name, *(file.stat().st_mtime_ns for file in files if file.is_file())])
    training = [is_training(run) for run in runs]
    return {"version": json.dumps([stamps, training], separators=(",", ":")), "training": any(training)}


class RunPages:
    """The ASGI application. It reads the files again for every request, and writes none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        query = {name: request.query_params.getlist(name) for name in request.query_params}
        host = request.headers.get("host", "")
        response = await run_in_threadpool(self.respond, request.method, scope["path"], query, host)
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    def respond(self, method: str, path: str, query: dict[str, list[str]], host: str) -> Response:
        """Answer a request."""
        if host and not is_loopback(parse_host(host)):
            return PlainTextResponse("this service answers to localhost and 127.0.0.1 alone\n", 403)
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("allowed: GET\n", 405)
        try:
            return self._render_page(path, query)
        except Exception as error:  # the file is damaged, or was removed meanwhile
            log.warning("%s: %s", type(error).__name__, error)
            return PlainTextResponse(f"{error}\n", 500)

    def _render_page(self, path: str, query: dict[str, list[str]]) -> Response:
        runs = {display_name(run): run for run in find_runs(self.directory)}
        if path == "/health/live":
            return JSONResponse({"status": "live"})
        if path == "/":
            names = list(runs)
        elif path == "/compare":
            names = query.get("run", [])
        else:
            names = [path.removeprefix("/runs/")] if path.startswith("/runs/") else [""]
        if unknown := [name for name in names if name not in runs]:
            return PlainTextResponse(f"there is no run {unknown[0]!r} here\n", 404)
        state = get_runs_version([runs[name] for name in names])
        if path == "/":
            state["training"] = True  # a run may begin at any time
        if "version" in query:
            return JSONResponse(state)
        live = LiveVersion(state["version"], state["training"])
        if path == "/":
            text = render_index(self.directory, list(runs.values()), live)
        elif path != "/compare":
            text = render_run_page(read_run(runs[names[0]]), live)
        elif 1 <= len(names) <= MAX_RUNS:
            text = render_runs_page([read_run(runs[name]) for name in names], live)
        else:
            return PlainTextResponse(f"choose 1 to {MAX_RUNS} runs\n", 400)
        return HTMLResponse(text)


def render_index(directory: Path, runs: Sequence[Path], live_state: LiveVersion) -> str:
    """Render the index: all runs, each with a link to its page and a checkbox for the comparison."""
    if not runs:
        nothing = f"<p>{escape(tr('No training has been logged here yet.'))}</p>"
        return render_document(tr("Runs"), str(directory), [PageSection(tr("Runs"), "", nothing)], live_state)
    names = [tr("Run"), tr("State"), tr("Step"), tr("Measures")]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    table = scroll_region(runs_table(f"<tr>{head}</tr>", "".join(map(run_row_html, runs))), tr("Runs"))
    button = f"<button>{escape(tr('Compare the selected runs'))}</button>"
    body = f'<form action="/compare">{table}<p>{button}</p></form>'
    return render_document(tr("Runs"), str(directory), [PageSection(tr("Runs"), "", body)], live_state)


def run_row_html(run: Path) -> str:
    """Render the row of a run in the index; a run that cannot be read shows the error."""
    text = display_name(run)
    name, label = escape(text), escape(tr("Compare {run}", run=text))
    try:
        record = read_run(run)
    except UserError as error:
        reason = escape(translate_message(str(error)))
        return f'<tr><th scope="row">{name}</th><td colspan="3">{reason}</td></tr>'
    baselines = {
        translate_fact(name): translate_fact(value)
        for name, value in record.facts.items()
        if name.endswith(" baseline")
    }
    scores = final_measures(record) | baselines
    measures = ", ".join(f"{measure}: {value}" for measure, value in scores.items())
    cells = [
        tr(STATE_TITLES.get(record.state, record.state)),
        tr("{done} of {planned}", done=f"{record.step:,}", planned=f"{record.steps:,}"),
        measures,
    ]
    return (
        f'<tr><th scope="row"><input type="checkbox" name="run" value="{name}" aria-label="{label}">'
        f'<a href="/runs/{quote(text)}">{name}</a></th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


class RunServer(uvicorn.Server):
    """Server that stops at the first signal."""

    def __init__(self, directory: Path, on_ready: Callable[[], None]) -> None:
        self.on_ready = on_ready
        super().__init__(
            uvicorn.Config(RunPages(directory), ws="none", lifespan="off", log_config=None, access_log=False,
                           server_header=False, timeout_graceful_shutdown=2)
        )  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


def serve_runs(directory: Path, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve the pages until a signal stops the process."""
    RunServer(directory, on_ready).run([sock])
