"""Tests of cli/error_handler.py."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from polyhead.cli import error_handler
from polyhead.cli.error_handler import handle_errors
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command


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
        (wrong_number(), 2, "polyhead: 'x' is not an integer\n"),
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
            "polyhead: out of memory; use a smaller batch (train.max_tokens, --batch-tokens) or a smaller "
            "model\n",
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
    assert "check the components of other packages first: my_pkg.mine:Norm; POLYHEAD_DEBUG=1" in said
    assert "bug in Polyhead" not in said
