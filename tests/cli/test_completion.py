"""Tests of cli/completion.py: verbs and options as bash, zsh and fish ask for them."""

import os
import shlex
import subprocess
import sys

import pytest

from polyhead.cli import completion
from polyhead.cli.verbs import VERBS


def test_bash_completes_verbs_and_options(cli, tmp_path, monkeypatch):
    """What bash puts into COMPREPLY, with the script that polyhead prints, by a command without torch."""
    code = "import sys; sys.modules['torch'] = None; from polyhead.cli import main; sys.exit(main())"
    command = tmp_path / "polyhead"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = cli("--show-completion", "bash").out + (
        "COMP_WORDS=(polyhead export runs/mine --); COMP_CWORD=3; _polyhead_completion polyhead; "
        'echo "${COMPREPLY[@]}"'
    )
    result = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--to" in result.stdout.split() and "--beam-size" not in result.stdout.split()
    for name, value in {"COMP_WORDS": "polyhead ", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_POLYHEAD_COMPLETE", "complete_bash")
    assert cli().out.split() == list(VERBS)


def test_zsh_and_fish_get_descriptions(cli, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "polyhead embe")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    description = "Compute an embedding of each text."
    for shell, text in (("zsh", f'"embed":"{description}"'), ("fish", f"embed\t{description}\n")):
        monkeypatch.setenv("_POLYHEAD_COMPLETE", f"complete_{shell}")
        assert text in cli().out
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "polyhead tra")
    assert [line.split("\t")[0] for line in cli().out.splitlines()] == ["train", "translate"]


@pytest.mark.parametrize(
    ("shell", "start_file", "script"),
    [
        ("bash", ".bashrc", ".bash_completions/polyhead.sh"),
        ("zsh", ".zshrc", ".zfunc/_polyhead"),
        ("fish", None, ".config/fish/completions/polyhead.fish"),
    ],
)
def test_script_is_installed_for_the_named_shell(shell, start_file, script, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    out = cli("--install-completion", shell).out
    assert out == f"completion for {shell} is in {tmp_path / script}; it works in the next terminal\n"
    assert f"_POLYHEAD_COMPLETE=complete_{shell}" in (tmp_path / script).read_text()
    assert start_file is None or (tmp_path / start_file).is_file()


def test_shell_is_detected_or_asked_for(cli, monkeypatch):
    monkeypatch.setattr(completion.shellingham, "detect_shell", lambda: ("fish", "/usr/bin/fish"))
    assert cli("--show-completion").out.startswith("complete --command polyhead")

    def fail():
        raise completion.shellingham.ShellDetectionFailure

    monkeypatch.setattr(completion.shellingham, "detect_shell", fail)
    for arguments, message in (
        ([], "missing SHELL; expected one of bash, zsh, fish"),
        (["zs"], "unknown shell 'zs'; did you mean 'zsh'? Known: bash, fish, zsh"),
        (["bash", "zsh"], "expected one shell, got bash, zsh"),
    ):
        assert cli.error("--show-completion", *arguments) == message
