"""Web pages of the training runs in a directory: an index, a page per run, and a comparison.

No model is loaded. Every two seconds a page polls the version of its content, which is derived from the
modification times of a few files, and reloads when the version has changed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from polyhead.core.atomic_io import read_regular_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_message
from polyhead.core.output_paths import did_you_mean_path
from polyhead.evaluate.run_facts import FinalScore, final_scores, list_judged
from polyhead.serve.auth import is_loopback, parse_host
from polyhead.viz.html_page import MAX_PAGE_BYTES, RUN_PAGES, PageSection, in_both_languages, scroll_region
from polyhead.viz.plot import format_number
from polyhead.viz.run_page import (
    MAX_RUNS,
    STATE_TITLES,
    LiveVersion,
    measure_name,
    render_document,
    render_run_page,
    render_runs_page,
    runs_table,
)
from polyhead.viz.run_record import METRICS, REPORT, RunRecord, display_name, is_training, read_nll, read_run

HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    # in addition to the policy in each page
    "content-security-policy": "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}
# a file may be somebody else's: its scripts reach nothing
FILE_POLICY = (
    f"{HEADERS['content-security-policy']}; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
)
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
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
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
        if path in ("/runs", "/runs/"):
            return RedirectResponse("/")
        if path == "/":
            names = list(runs)
        elif path == "/compare":
            names = query.get("run", [])
        else:
            name, _, file = path.removeprefix("/runs/").partition("/")
            names = [name if path.startswith("/runs/") and file in ("", *RUN_PAGES) else ""]
        if unknown := [name for name in names if name not in runs]:
            missing = f"run {unknown[0]!r}" if unknown[0] else f"page {path!r}"
            return PlainTextResponse(f"there is no {missing} here\n", 404)
        if path not in ("/", "/compare") and file not in ("", "report.html"):
            if not os.path.isfile(runs[name] / file):
                return PlainTextResponse(f"there is no {file} of {name!r} here\n", 404)
            content = read_regular_file(runs[name] / file, max_bytes=MAX_PAGE_BYTES)
            return HTMLResponse(content, headers={"content-security-policy": FILE_POLICY})
        state = get_runs_version([runs[name] for name in names])
        if path == "/":
            state["training"] = True  # a run may begin at any time
        if "version" in query:
            return JSONResponse(state)
        live = LiveVersion(state["version"], state["training"])
        if path == "/":
            text = render_index(self.directory, list(runs.values()), live)
        elif path != "/compare":
            text = render_run_page(read_run(runs[name]), live, "" if file else f"{name}/")
        elif 1 <= len(names) <= MAX_RUNS:
            text = render_runs_page([read_run(runs[name]) for name in names], live)
        else:
            return PlainTextResponse(f"choose 1 to {MAX_RUNS} runs\n", 400)
        return HTMLResponse(text)


@in_both_languages
def render_index(directory: Path, runs: Sequence[Path], live_state: LiveVersion) -> str:
    """Render the index: all runs, each with a link to its page and a checkbox for the comparison."""
    if not runs:
        nothing = f"<p>{escape(tr('No training has been logged here yet.'))}</p>"
        return render_document(tr("Runs"), str(directory), [PageSection(tr("Runs"), "", nothing)], live_state)
    records = {run: _read_record(run) for run in runs}
    measures = {
        run: {} if isinstance(record, str) else collect_measures(record) for run, record in records.items()
    }
    names = list(dict.fromkeys(name for row in measures.values() for name in row if name != tr("Loss")))
    names += [tr("Loss")]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (tr("Run"), tr("State"), *names))
    rows = "".join(run_row_html(run, records[run], measures[run], names) for run in runs)
    table = scroll_region(runs_table(f"<tr>{head}</tr>", rows, "cards"), tr("Runs"))
    button = f"<button>{escape(tr('Compare the selected runs'))}</button>"
    body = f'<form action="/compare">{table}<p>{button}</p></form>'
    return render_document(tr("Runs"), str(directory), [PageSection(tr("Runs"), "", body)], live_state)


def _read_record(run: Path) -> RunRecord | str:
    """The record of a run, or why it cannot be read."""
    try:
        return read_run(run)
    except UserError as error:
        return str(error)


def collect_measures(record: RunRecord) -> dict[str, str]:
    """The two main scores, the first with its baseline, and the best validation loss."""
    scores = final_scores(record.facts)[1]
    if not scores:  # before the end: those of the last evaluation
        last = record.rows("valid")[-1:]
        names = list_judged(
            [key for row in last for key, value in row.items() if isinstance(value, int | float)]
        )
        scores = [FinalScore(name, format_number(float(last[0][name])), "") for name in names]
    measures: dict[str, str] = {}
    for score in scores[:2]:
        name, baseline = measure_name(score.name), score.baseline.split()[:1]
        if measures:
            measures[name] = score.value
        else:
            text = f"{score.value} ({baseline[0]})" if baseline else score.value
            measures[tr("{name} (baseline)", name=name)] = text
    losses = [loss for row in record.rows("valid") if (loss := read_nll(row)) is not None]
    return measures | ({tr("Loss"): format_number(min(losses))} if losses else {})


def run_row_html(
    run: Path, record: RunRecord | str, measures: Mapping[str, str], names: Sequence[str]
) -> str:
    """Render the row of a run in the index; a run that cannot be read shows the error."""
    text = display_name(run)
    name, label = escape(text), escape(tr("Compare {run}", run=text))
    if isinstance(record, str):
        reason = escape(translate_message(record))
        return f'<tr><th scope="row">{name}</th><td colspan="{1 + len(names)}">{reason}</td></tr>'
    state = tr(STATE_TITLES.get(record.state, record.state))
    if record.step < record.steps:
        state += f" ({tr('{done} of {planned}', done=f'{record.step:,}', planned=f'{record.steps:,}')})"
    cells = {tr("State"): state} | {name: measures.get(name, "") for name in names}
    return (
        f'<tr><th scope="row"><input type="checkbox" name="run" value="{name}" aria-label="{label}">'
        f'<a href="/runs/{quote(text)}">{name}</a></th>'
        + "".join(f'<td data-name="{escape(key)}">{escape(cell)}</td>' for key, cell in cells.items())
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
