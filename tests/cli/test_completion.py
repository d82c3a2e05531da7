"""Shells complete verbs and options: asked as bash, zsh and fish ask."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from polyhead.cli import completion, main
from polyhead.cli.verbs import VERBS


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home of its own, and a command polyhead on the path that fails if it imports torch."""
    home = tmp_path_factory.mktemp("home")
    code = "import sys; sys.modules['torch'] = None; from polyhead.cli import main; sys.exit(main())"
    (home / "bin").mkdir()
    command = home / "bin" / "polyhead"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TERM": "dumb"}


def output(command: list[str], environment: dict[str, str], **more: str) -> str:
    done = subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def complete_in_bash(words: list[str], environment: dict[str, str]) -> list[str]:
    """What bash puts into COMPREPLY, having read the script that polyhead prints."""
    script = (
        'eval "$(polyhead --show-completion bash)"; '
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _polyhead_completion polyhead; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return output(["bash", "--norc", "-c", script], environment).split()


def test_bash_completes_verbs(environment: dict[str, str]) -> None:
    assert complete_in_bash(["polyhead", "tra"], environment) == ["train", "translate"]
    assert complete_in_bash(["polyhead", ""], environment) == list(VERBS)


def test_bash_completes_the_options_of_each_verb(environment: dict[str, str]) -> None:
    assert complete_in_bash(["polyhead", "translate", "runs/mine", "--beam"], environment) == ["--beam-size"]
    assert "--to" in complete_in_bash(["polyhead", "export", "--"], environment)
    assert "--beam-size" not in complete_in_bash(["polyhead", "export", "--"], environment)


def test_zsh_and_fish_get_verbs_with_what_they_do(environment: dict[str, str]) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": "polyhead embe"}
    zsh = output(["polyhead"], environment, _POLYHEAD_COMPLETE="complete_zsh", **asked)
    assert '"embed":"Compute an embedding of each text."' in zsh
    asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    fish = output(["polyhead"], environment, _POLYHEAD_COMPLETE="complete_fish", **asked)
    assert fish == "embed\tCompute an embedding of each text.\n"


@pytest.mark.parametrize(
    ("shell", "start_file", "script"),
    [
        ("bash", ".bashrc", ".bash_completions/polyhead.sh"),
        ("zsh", ".zshrc", ".zfunc/_polyhead"),
        ("fish", None, ".config/fish/completions/polyhead.fish"),
    ],
)
def test_the_script_is_installed_for_the_named_shell(
    shell: str, start_file: str | None, script: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    told = output(["polyhead", "--install-completion", shell], environment, HOME=str(tmp_path))
    assert told == f"completion for {shell} is in {tmp_path / script}; it works in the next terminal\n"
    assert f"_POLYHEAD_COMPLETE=complete_{shell}" in (tmp_path / script).read_text()
    assert start_file is None or (tmp_path / start_file).is_file()


def test_the_shell_is_found_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion.shellingham, "detect_shell", lambda: ("fish", "/usr/bin/fish"))
    assert main(["--show-completion"]) == 0
    assert capsys.readouterr().out.startswith("complete --command polyhead")

    def fail() -> None:
        raise completion.shellingham.ShellDetectionFailure

    monkeypatch.setattr(completion.shellingham, "detect_shell", fail)
    for arguments, message in (
        ([], "which shell? expected one of bash, zsh, fish"),
        (["zs"], "unknown shell 'zs'; did you mean 'zsh'? Known: bash, fish, zsh"),
        (["bash", "zsh"], "expected one shell, got bash, zsh"),
    ):
        assert main(["--show-completion", *arguments]) == 2
        assert capsys.readouterr().err == f"polyhead: {message}\n"
