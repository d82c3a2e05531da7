"""The way from what was typed to a verb, and from an error to one line and an exit code."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import polyhead
from polyhead.cli import error_handler, main
from polyhead.cli.error_handler import handle_errors
from polyhead.cli.verbs import VERBS
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command


def polyhead_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polyhead", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("typed", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_verb(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in VERBS)


def test_help_is_quick() -> None:
    def seconds(*command: str) -> float:
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, timeout=60, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    bare = min(seconds("-c", "pass") for _ in range(5))
    assert min(seconds("-m", "polyhead", "--help") for _ in range(5)) - bare < 0.1


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_all_its_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: polyhead {verb} ")
    said = import_module(f"polyhead.cli.{VERBS[verb][0]}").run.__doc__.splitlines()[0]
    assert said in " ".join(out.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"polyhead {polyhead.__version__}\n"


def test_an_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "polyhead: unknown verb 'trian'; did you mean 'train'?\n"
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err == f"polyhead: unknown verb 'xyzzy'; there are: {', '.join(VERBS)}\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("env --nope", "no option --nope"),
        ("eval runs/x --beamsize 3", "no option --beamsize; did you mean '--beam-size'?"),
        (
            "train a.yaml --beam 3",
            "no option --beam; did you mean 'generation.beam_size'? Keys of the recipe are written KEY=VALUE",
        ),
        ("train a.yaml --beamsize 3", "no option --beamsize"),  # not '--resume'
        (
            "train a.yaml --epochs 3",
            "no option --epochs; did you mean 'train.epochs'? Keys of the recipe are written KEY=VALUE",
        ),
        (
            "train a.yaml --model.d_model 3",
            "no option --model.d_model. Keys of the recipe are written KEY=VALUE",
        ),
        ("train a.yaml --proceses 3", "no option --proceses; did you mean '--processes'?"),
        ("generate runs/x --max-length 3", "no option --max-length; did you mean '--max-new-tokens'?"),
        ("translate runs/x a --num-beams 3", "no option --num-beams; did you mean '--beam-size'?"),
        ("env x", "got unexpected extra argument (x)"),
        ("train", "RECIPE: missing"),
        ("attend runs/x", "TEXT: missing"),
        ("convert-heads runs/x runs/y", "--kv-heads: missing"),
        ("translate runs/x --chunk 0", "--chunk: '0' is out of range: should be greater than or equal to 1"),
        ("generate runs/x a -n no", "--n: 'no' is not a whole number"),
        ("lab caches --limit 1", "--limit: '1' is out of range: should be greater than or equal to 2"),
        ("eval runs/x --split no", "--split: 'no' is not one of 'test', 'valid'"),
        ("translate runs/x --cache", "option '--cache' requires an argument"),
    ],
)
def test_what_a_verb_does_not_take_is_said_in_one_line(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *rest = typed.split()
    assert main([verb, *rest]) == 2
    assert capsys.readouterr().err == f"polyhead: {said} (polyhead {verb} --help)\n"


@pytest.mark.parametrize("typed", [["--help"], ["parts"]])
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
    """As under a supervisor that opens none: no traceback, and no file of ours takes the number of a stream."""
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


def verb_that_raises(error: BaseException) -> int:
    import typer

    def run() -> None:
        raise error

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(handle_errors(run))
    with pytest.raises(SystemExit) as end:
        app([])
    return int(end.value.code or 0)


def wrong_number() -> Exception:
    try:
        TypeAdapter(int).validate_python("x")
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("no"), 2, "polyhead: no\n"),
        (UserError("one\ntwo"), 2, "polyhead: one\npolyhead: two\n"),
        (wrong_number(), 2, "polyhead: 'x' is not a whole number\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            2,
            "polyhead: a.txt: No such file or directory\n",
        ),
        (PermissionError(13, "Permission denied", "a.txt"), 2, "polyhead: a.txt: Permission denied\n"),
        (OSError(28, "No space left on device", "a.txt"), 1, "polyhead: a.txt: No space left on device\n"),
        (OSError(28, "No space left on device"), 1, "polyhead: No space left on device\n"),
        (
            ModuleNotFoundError("x", name="babel"),
            2,
            f"polyhead: this needs babel: {install_command('demo')}\n",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            1,
            "polyhead: out of memory; use a smaller batch (train.max_tokens, --batch-tokens) or a smaller model\n",
        ),
        (KeyboardInterrupt(), 130, "polyhead: interrupted\n"),
    ],
)
def test_an_error_becomes_a_line_and_a_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb_that_raises(error) == code
    assert capsys.readouterr().err == message


def test_a_defect_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_handler, "LOADED_PLUGINS", set())
    assert verb_that_raises(KeyError("x")) == 1
    quiet = capsys.readouterr().err
    assert quiet.startswith("polyhead: unexpected KeyError: 'x' (error_handler.py:")
    assert "polyhead env" in quiet
    assert "Traceback" not in quiet
    monkeypatch.setenv("POLYHEAD_DEBUG", "1")
    verb_that_raises(KeyError("x"))
    assert "Traceback" in capsys.readouterr().err


def test_where_parts_of_ones_own_are_in_use_a_mistake_may_be_theirs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_handler, "LOADED_PLUGINS", {"my_pkg.mine:Norm"})
    assert verb_that_raises(KeyError("x")) == 1
    said = capsys.readouterr().err
    assert "look first at what is not Polyhead's: my_pkg.mine:Norm; POLYHEAD_DEBUG=1" in said
    assert "defect of Polyhead" not in said


def test_python_m_polyhead_ends_with_the_verbs_exit_code(tmp_path: Path) -> None:
    done = polyhead_process("train", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stderr) == (2, f"polyhead: {tmp_path / 'none.yaml'}: no such file\n")


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
