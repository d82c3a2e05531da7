"""The way from what was typed to a verb, and from an error to one line and an exit code."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import polyhead
from polyhead.cli import main


def test_help_is_quick() -> None:
    def seconds(*command: str) -> float:
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, timeout=60, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    bare = min(seconds("-c", "pass") for _ in range(5))
    assert min(seconds("-m", "polyhead", "--help") for _ in range(5)) - bare < 0.1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"polyhead {polyhead.__version__}\n"


@pytest.mark.parametrize("typed", [["--help"], ["components"]])
def test_nobody_reads_what_is_said(typed: list[str]) -> None:
    """As in `polyhead --help | head -0`: no word on standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "polyhead", *typed],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["<&- 2>&-", ">&-"])
def test_a_stream_that_is_closed_is_one_without_text(closed: str, tiny: Path) -> None:
    """As under a supervisor that opens none: no traceback, and no file of ours takes the
    number of a stream.
    """
    typed = shlex.join([sys.executable, "-m", "polyhead", "translate", str(tiny)])
    command = ["sh", "-c", f"{typed} {closed}"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_full_disk_is_said_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "polyhead", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "polyhead: No space left on device\n")


def test_an_interruption_before_the_verb_has_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead.cli.app.run_verb", interrupted)
    assert main(["env"]) == 130
    assert capsys.readouterr().err == "polyhead: interrupted\n"


def test_a_reader_who_leaves_early_is_no_error() -> None:
    code = "from polyhead.cli.error_handler import handle_errors\nimport typer\n"
    code += "app = typer.Typer(pretty_exceptions_enable=False)\n"
    code += "def run():\n    for i in range(100000): print('line', i)\n"
    code += "app.command()(handle_errors(run))\napp([])\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(timeout=60), said) == (141, "")
    process.stderr.close()
