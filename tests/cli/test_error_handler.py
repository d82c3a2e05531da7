import pytest
import typer
from pydantic import TypeAdapter, ValidationError

from polyhead.cli import error_handler
from polyhead.cli.error_handler import handle_errors
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command


def run_verb_that_raises(error):
    """The exit code."""

    def run():
        raise error

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(handle_errors(run))
    with pytest.raises(SystemExit) as end:
        app([])
    return int(end.value.code or 0)


def validation_error():
    with pytest.raises(ValidationError) as error:
        TypeAdapter(int).validate_python("x")
    return error.value


OUT_OF_MEMORY = "out of memory; use a smaller batch (train.max_tokens, --batch-tokens) or a smaller model"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("no"), 2, "no"),
        (UserError("one\ntwo"), 2, "one\npolyhead: two"),
        (validation_error(), 2, "'x' is not an integer"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 2, "a.txt: No such file or directory"),
        (PermissionError(13, "Permission denied", "a.txt"), 2, "a.txt: Permission denied"),
        (OSError(28, "No space left on device", "a.txt"), 1, "a.txt: No space left on device"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (ModuleNotFoundError("x", name="babel"), 2, f"this needs babel: {install_command('demo')}"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, OUT_OF_MEMORY),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_error_becomes_a_line_and_an_exit_code(error, code, message, capsys):
    assert run_verb_that_raises(error) == code
    assert capsys.readouterr().err == f"polyhead: {message}\n"


def test_unexpected_error_names_a_bug_or_plugins(capsys, monkeypatch):
    monkeypatch.setattr(error_handler, "LOADED_PLUGINS", set())
    assert run_verb_that_raises(KeyError("x")) == 1
    err = capsys.readouterr().err
    assert err.startswith("polyhead: unexpected KeyError: 'x' (error_handler.py:")
    assert "polyhead env" in err and "Traceback" not in err
    monkeypatch.setattr(error_handler, "LOADED_PLUGINS", {"my_pkg.mine:Norm"})
    assert run_verb_that_raises(KeyError("x")) == 1
    err = capsys.readouterr().err
    assert "check the components of other packages first: my_pkg.mine:Norm; POLYHEAD_DEBUG=1" in err
    assert "bug in Polyhead" not in err
    monkeypatch.setenv("POLYHEAD_DEBUG", "1")
    run_verb_that_raises(KeyError("x"))
    assert "Traceback" in capsys.readouterr().err
