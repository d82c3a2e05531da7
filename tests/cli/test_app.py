"""Tests of cli/app.py: from the command line to a verb, and from an error to one line and an exit code."""

import gc
import os
import re
import shlex
import subprocess
import sys

import polyhead
from polyhead.cli import main
from polyhead.cli.app import pause_collector
from polyhead.cli.verbs import VERBS

POLYHEAD = [sys.executable, "-m", "polyhead"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def test_version_and_interrupt_during_import(cli, monkeypatch):
    assert cli("--version").out == f"polyhead {polyhead.__version__}\n"

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead.cli.app.run_verb", interrupt)
    assert cli.error("env", code=130) == "interrupted"


def test_collector_pauses_for_imports_of_a_new_process(monkeypatch):
    frozen = []
    monkeypatch.setattr("polyhead.cli.app.gc.freeze", lambda: frozen.append(True))
    with pause_collector():
        assert gc.isenabled()  # a process with models, whose garbage must go
    assert not frozen
    monkeypatch.delitem(sys.modules, "torch")
    with pause_collector():
        assert not gc.isenabled()
    assert gc.isenabled() and frozen == [True]
    gc.disable()  # by the caller of main
    try:
        with pause_collector():
            pass
        assert not gc.isenabled() and frozen == [True]
    finally:
        gc.enable()


HELP = "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('polyhead', run_name='__main__')"
MANY_LINES = """
import typer
from polyhead.cli.error_handler import handle_errors
def run():
    for i in range(100000): print("line", i)
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(handle_errors(run))
app([])
"""
EACH_IN_A_CHILD = """
import os, sys
for fd, code in zip(map(int, sys.argv[1::2]), sys.argv[2::2]):
    if not os.fork():
        os.dup2(fd, 1)
        sys.exit(exec(code))  # which ends the interpreter, and flushes its streams
    print(os.waitstatus_to_exitcode(os.wait()[1]), file=sys.stderr, flush=True)
"""


def test_output_that_cannot_be_written_is_no_traceback():
    """As in `polyhead --help | head -0`, on a full disk, and of a verb whose reader closes early."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, open("/dev/full", "w") as full:
        fds = pipe.fileno(), full.fileno()
        cases = str(fds[0]), HELP, str(fds[1]), HELP, str(fds[0]), MANY_LINES
        command = [sys.executable, "-c", EACH_IN_A_CHILD, *cases]
        result = subprocess.run(command, **PIPES, pass_fds=fds, check=True)
    assert result.stderr == "141\npolyhead: No space left on device\n1\n141\n"


def test_closed_standard_streams_are_empty(tiny):
    """As under a supervisor that opens none: no traceback, and no opened file takes a stream's number."""
    command = shlex.join([*POLYHEAD, "translate", str(tiny)])
    result = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], **PIPES, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_help_has_types_in_words(capsys):
    assert main(["help", "estimate"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Options: --probe / --no-probe " in text and "Several processes: --data-parallel NUMBER" in text
    assert "--batch-size NUMBER number of rows per batch, for a preset [default: 1; at least 1]" in text
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        assert not re.search(
            r"<(int|str|list|path|float)|x[<>]=|\(from the run\)", capsys.readouterr().out
        ), verb


def test_out_is_accepted_for_output(tmp_path, cli):
    assert cli.error("demo", f"--out={tmp_path}/a\0b") == cli.error("demo", "--output", f"{tmp_path}/a\0b")
