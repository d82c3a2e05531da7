"""Tests of cli/app.py: from the command line to a verb, and from an error to one line and an exit code."""

import os
import re
import shlex
import subprocess
import sys

import polyhead
from polyhead.cli import main
from polyhead.cli.verbs import VERBS

POLYHEAD = [sys.executable, "-m", "polyhead"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def test_help_imports_no_library():
    code = (
        "import sys; from polyhead.cli import main; assert main(['--help']) == 0; "
        "assert not {'torch', 'typer', 'pydantic', 'yaml', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def test_version_and_interrupt_during_import(cli, monkeypatch):
    assert cli("--version").out == f"polyhead {polyhead.__version__}\n"

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("polyhead.cli.app.run_verb", interrupt)
    assert cli.error("env", code=130) == "interrupted"


def test_output_that_cannot_be_written_is_no_traceback():
    """As in `polyhead --help | head -0`, and on a full disk."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, open("/dev/full", "w") as full:
        for stdout, expected in ((pipe, (141, "")), (full, (1, "polyhead: No space left on device\n"))):
            result = subprocess.run([*POLYHEAD, "--help"], **PIPES | {"stdout": stdout}, check=False)
            assert (result.returncode, result.stderr) == expected


def test_closed_standard_streams_are_empty(tiny):
    """As under a supervisor that opens none: no traceback, and no opened file takes a stream's number."""
    command = shlex.join([*POLYHEAD, "translate", str(tiny)])
    result = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], **PIPES, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_reader_that_closes_early_is_silent():
    code = (
        "from polyhead.cli.error_handler import handle_errors\nimport typer\n"
        "app = typer.Typer(pretty_exceptions_enable=False)\n"
        "def run():\n    for i in range(100000): print('line', i)\n"
        "app.command()(handle_errors(run))\napp([])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], **PIPES) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


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
