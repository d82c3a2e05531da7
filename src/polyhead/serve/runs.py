"""The pages of the trainings in a directory, without a model: an index, a page for each run, several runs in one.

A page asks every two seconds for the version of what it shows, which is made of the times of a few files, and renews
itself where that has changed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote

import uvicorn

from polyhead.analysis.page import Section, scrollable
from polyhead.analysis.run_page import STATES, Live, document, final_measures, run_page
from polyhead.analysis.run_record import METRICS, REPORT, is_training, read_run
from polyhead.analysis.runs_page import MOST, runs_page, table_html
from polyhead.core.i18n import tr, translate_fact, translate_message
from polyhead.errors import UserError
from polyhead.serve.keys import host_of, is_loopback

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
# beside the policy inside of each page
POLICY = b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
log = logging.getLogger("polyhead.serve")


class Answer(NamedTuple):
    """What a request gets."""

    code: int
    kind: str
    body: bytes


def check_runs(directory: Path) -> None:
    """The directory holds runs, or may come to hold some; a run itself is refused with what to do instead."""
    if not directory.is_dir():
        raise UserError(f"--runs {directory} is no directory; wanted one that holds runs, such as runs/")
    if (directory / METRICS).is_file():
        raise UserError(
            f"--runs {directory} is a run; name the directory that holds it ({directory.resolve().parent}), "
            f"or write its page: polyhead report {directory}"
        )


def find_runs(directory: Path) -> list[Path]:
    """The runs in the directory, the one that was written last first."""
    found = [metrics.parent for metrics in directory.glob(f"*/{METRICS}")]
    return sorted(found, key=lambda run: (-(run / METRICS).stat().st_mtime, run.name))


def version_of(runs: Sequence[Path]) -> dict[str, Any]:
    """What changes when pages of these runs do, and whether any of them is trained now."""
    stamps = []
    for run in runs:
        files = (run / name for name in (METRICS, REPORT, "README.md"))
        stamps.append([run.name, *(file.stat().st_mtime_ns for file in files if file.is_file())])
    training = [is_training(run) for run in runs]
    return {"version": json.dumps([stamps, training], separators=(",", ":")), "training": any(training)}


class RunPages:
    """The application: reads the files anew for every request, and writes none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        answer = await asyncio.to_thread(
            self.answer, scope["method"], scope["path"], query, headers.get("host", "")
        )
        fields = [(b"content-type", answer.kind.encode()), (b"content-length", b"%d" % len(answer.body))]
        fields += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
        fields += [(b"content-security-policy", POLICY)]
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.start", "status": answer.code, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def answer(self, method: str, path: str, query: dict[str, list[str]], host: str) -> Answer:
        """The answer to a request."""
        if host and not is_loopback(host_of(host)):
            return Answer(403, TEXT, b"this service answers to localhost and 127.0.0.1 alone\n")
        if method not in ("GET", "HEAD"):
            return Answer(405, TEXT, b"wanted: GET\n")
        try:
            return self._page(path, query)
        except Exception as error:  # a file that is damaged in whatever way, or just gone
            log.warning("%s: %s", type(error).__name__, error)
            return Answer(500, TEXT, f"{error}\n".encode())

    def _page(self, path: str, query: dict[str, list[str]]) -> Answer:
        runs = {run.name: run for run in find_runs(self.directory)}
        if path == "/health/live":
            return Answer(200, JSON, b'{"status":"live"}')
        if path == "/":
            chosen = list(runs)
        elif path == "/compare":
            chosen = query.get("run", [])
        else:
            chosen = [path.removeprefix("/runs/")] if path.startswith("/runs/") else [""]
        if unknown := [name for name in chosen if name not in runs]:
            return Answer(404, TEXT, f"there is no run {unknown[0]!r} here\n".encode())
        state = version_of([runs[name] for name in chosen])
        if path == "/":
            state["training"] = True  # a run may begin at any time
        if "version" in query:
            return Answer(200, JSON, json.dumps(state).encode())
        live = Live(state["version"], state["training"])
        if path == "/":
            text = index_page(self.directory, list(runs.values()), live)
        elif path != "/compare":
            text = run_page(read_run(runs[chosen[0]]), live)
        elif 1 <= len(chosen) <= MOST:
            text = runs_page([read_run(runs[name]) for name in chosen], live)
        else:
            return Answer(400, TEXT, f"choose 1 to {MOST} runs\n".encode())
        return Answer(200, HTML, text.encode())


def index_page(directory: Path, runs: Sequence[Path], live: Live) -> str:
    """All runs, each with a link to its page and a box to choose it for the common one."""
    if not runs:
        nothing = f"<p>{escape(tr('No training has been logged here yet.'))}</p>"
        return document(tr("Runs"), str(directory), [Section(tr("Runs"), "", nothing)], live)
    names = [tr("Run"), tr("State"), tr("Step"), tr("Measures")]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    table = scrollable(table_html(f"<tr>{head}</tr>", "".join(map(row_html, runs))), tr("Runs"))
    body = f'<form action="/compare">{table}<p><button>{escape(tr("Compare the chosen runs"))}</button></p></form>'
    return document(tr("Runs"), str(directory), [Section(tr("Runs"), "", body)], live)


def row_html(run: Path) -> str:
    """A run in the table of the index; one that cannot be read says why."""
    name, label = escape(run.name), escape(tr("Compare {run}", run=run.name))
    try:
        record = read_run(run)
    except UserError as error:
        why = escape(translate_message(str(error)))
        return f'<tr><th scope="row">{name}</th><td colspan="3">{why}</td></tr>'
    baselines = {
        translate_fact(name): translate_fact(value)
        for name, value in record.facts.items()
        if name.endswith(" baseline")
    }
    scores = final_measures(record) | baselines
    measures = ", ".join(f"{measure}: {value}" for measure, value in scores.items())
    cells = [
        tr(STATES.get(record.state, record.state)),
        tr("{done} of {planned}", done=f"{record.step:,}", planned=f"{record.steps:,}"),
        measures,
    ]
    return (
        f'<tr><th scope="row"><input type="checkbox" name="run" value="{name}" aria-label="{label}">'
        f'<a href="/runs/{quote(run.name)}">{name}</a></th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


class RunServer(uvicorn.Server):
    """Ends at the first signal."""

    def __init__(self, directory: Path, ready: Callable[[], None]) -> None:
        self.ready = ready
        super().__init__(
            uvicorn.Config(RunPages(directory), ws="none", lifespan="off", log_config=None, access_log=False,
                           server_header=False, timeout_graceful_shutdown=2)
        )  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


def serve_runs(directory: Path, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the pages until a signal says to stop."""
    RunServer(directory, ready).run([sock])
