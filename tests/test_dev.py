"""The script that sets up a clone: installs once, takes the torch that fits, passes arguments through, says
what is wrong.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "dev"


class Calls:
    """Stands for subprocess.call: remembers the commands, and fails those that contain a word."""

    def __init__(self, failing: str = "nothing") -> None:
        self.commands: list[list[str]] = []
        self.failing = failing

    def __call__(self, command: list[str], cwd: str | None = None) -> int:
        self.commands.append(command)
        if "venv" in command and self.failing not in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        return int(self.failing in command)

    def torch(self) -> list[list[str]]:
        """The options of each installation of torch, after those that all of pip's calls have."""
        return [command[9:-1] for command in self.commands if command[-1] == "torch"]


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, in an empty clone."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = spec_from_loader("dev", SourceFileLoader("dev", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("POLYHEAD_TORCH", raising=False)
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    module.NVIDIA = (str(tmp_path / "nvidia0"),)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(name)
    module.ROOT, module.VENV, module.BIN = tmp_path, tmp_path / ".venv", tmp_path / ".venv" / "bin"
    module.STAMP = module.VENV / "stamp.json"
    return module


def calls(dev: ModuleType, monkeypatch: pytest.MonkeyPatch, failing: str = "nothing") -> Calls:
    calls_made = Calls(failing)
    monkeypatch.setattr(dev.subprocess, "call", calls_made)
    return calls_made


def test_first_call_installs_and_second_does_not(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    first = calls(dev, monkeypatch)
    assert dev.install("demo,dev") == 0
    assert [command[-1] for command in first.commands] == [str(dev.VENV), "torch", ".[demo,dev]"]
    assert all("constraints.txt" in command for command in first.commands[1:])
    second = calls(dev, monkeypatch)
    assert dev.install("demo,dev") == 0
    assert dev.install("demo") == 0
    assert second.commands == []


CPU = [
    "--index-url",
    "https://download.pytorch.org/whl/cpu",
    "--no-deps",
    "--timeout",
    "10",
    "--retries",
    "1",
]


def test_without_nvidia_device_torch_is_for_cpus(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls_made = calls(dev, monkeypatch)
    assert dev.install("all") == 0
    assert calls_made.torch() == [CPU]
    assert (
        "dev: no NVIDIA device here, so torch's build for CPUs is taken; './dev --torch cuda VERB' takes "
        "the other\n" in capsys.readouterr().err
    )


@pytest.mark.parametrize("sign", ["device", "program", "system"])
def test_usual_build_comes_from_the_index_of_pip(
    sign: str, dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls_made = calls(dev, monkeypatch)
    if sign == "device":
        Path(dev.NVIDIA[0]).touch()
    elif sign == "program":
        monkeypatch.setattr(dev.shutil, "which", lambda name: f"/usr/bin/{name}")
    else:
        monkeypatch.setattr(dev.sys, "platform", "darwin")
    assert dev.install("all") == 0
    assert calls_made.torch() == [[]]
    assert "NVIDIA" not in capsys.readouterr().err


def test_failing_index_is_followed_by_that_of_pip(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls_made = calls(dev, monkeypatch, failing="--index-url")
    assert dev.install("demo") == 0
    assert calls_made.torch() == [CPU, []]
    assert (
        "dev: https://download.pytorch.org/whl/cpu gave no torch; trying pip's own" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("build", "options"), [("cuda", []), ("https://a.example/cpu", None)])
def test_the_build_of_torch_can_be_chosen(
    build: str, options: list[str] | None, dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [CPU[0], build, *CPU[2:]] if options is None else options
    calls_made = calls(dev, monkeypatch)
    monkeypatch.setenv("POLYHEAD_TORCH", "cpu")  # the option wins
    assert dev.main(["--torch", build, "install"]) == 0
    assert calls_made.torch() == [expected]
    assert dev.main(["install"]) == 0  # the variable is now what the option was
    monkeypatch.delenv("POLYHEAD_TORCH")
    assert dev.main(["install"]) == 0
    assert len(calls_made.torch()) == 1
    assert dev.main(["--torch", "cpu", "install"]) == 0
    assert calls_made.torch()[1:] == [[*CPU, "--force-reinstall", "--no-deps"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--torch"], "unknown build of torch 'nothing'; known: cpu, cuda, or the URL of an index"),
        (
            ["--torch", "gpu", "demo"],
            "unknown build of torch 'gpu'; known: cpu, cuda, or the URL of an index",
        ),
        (["--torch", "cpu"], "--torch cpu: name a verb as well; known: install, demo, test"),
    ],
)
def test_a_faulty_choice_of_torch_is_refused(
    arguments: list[str],
    message: str,
    dev: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POLYHEAD_TORCH", "cpu")  # so that what main sets is taken back
    assert dev.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"dev: {message}")


def test_changed_requirements_are_installed_again(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls(dev, monkeypatch)
    dev.install("demo")
    (dev.ROOT / "constraints.txt").write_text("torch==3")
    new_calls = calls(dev, monkeypatch)
    assert dev.install("demo") == 0
    assert [command[-1] for command in new_calls.commands] == ["torch", ".[demo]"]


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("venv", "dev: cannot make .venv; on Debian or Ubuntu: apt install python3-venv\n"),
        (
            "torch",
            "dev: pip could not install torch (its message is above); mend that and call ./dev again\n",
        ),
        (
            ".[demo]",
            "dev: pip could not install .[demo] (its message is above); mend that and call ./dev again\n",
        ),
    ],
)
def test_failed_installation_is_reported_and_repeated(
    failing: str,
    message: str,
    dev: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls(dev, monkeypatch, failing)
    assert dev.install("demo") == 1
    assert capsys.readouterr().err.endswith(message)
    assert not dev.STAMP.exists()


def test_arguments_and_exit_codes_pass_through(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    calls(dev, monkeypatch)
    monkeypatch.setattr(dev, "become", lambda command, **environment: commands.append(command) or 7)
    monkeypatch.setattr(dev.os, "chdir", lambda path: None)
    assert dev.main(["demo", "--translate", "March 3, 2027"]) == 7
    assert commands[-1] == [str(dev.BIN / "polyhead"), "demo", "--translate", "March 3, 2027"]
    assert dev.main(["test", "-x", "tests/cli"]) == 7
    assert commands[-1][1:] == ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-x", "tests/cli"]


def test_an_old_python_is_refused_by_name(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    assert dev.main(["lint"]) == 1
    assert capsys.readouterr().err == "dev: Python 3.9 is too old; install Python 3.11 or newer\n"
    monkeypatch.setattr(dev.shutil, "which", lambda name: name if name == "python3.12" else None)
    newer = calls(dev, monkeypatch)
    assert dev.main(["lint"]) == 0
    assert newer.commands == [["python3.12", dev.__file__, "lint"]]


def test_help_and_unknown_verbs_need_no_installation() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60
        )

    assert "./dev demo [...]" in run("--help").stdout
    process = run("tset")
    assert (process.returncode, process.stderr) == (
        2,
        "dev: unknown verb 'tset'; known: install, demo, test, mutants, lint, docs, bench, acceptance, "
        "package, site\n",
    )
