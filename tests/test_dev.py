import runpy
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "dev"
URL = "https://download.pytorch.org/whl/cpu"
CPU = ["--index-url", URL, "--no-deps", "--timeout", "10", "--retries", "1"]


class Calls:
    """Stands for subprocess.call: remembers the commands, and fails those that contain a word."""

    def __init__(self):
        self.commands, self.failing = [], ""

    def __call__(self, command, cwd=None):
        self.commands.append(command)
        if "venv" in command and self.failing not in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        return int(self.failing in command)

    def torch(self):
        """The options of each installation of torch, after those that all of pip's calls have."""
        return [command[8:-1] for command in self.commands if command[-1] == "torch"]


@pytest.fixture
def dev(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = module_from_spec(spec_from_loader("dev", SourceFileLoader("dev", str(SCRIPT))))
    module.__spec__.loader.exec_module(module)
    monkeypatch.delenv("POLYHEAD_TORCH", raising=False)
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    module.NVIDIA = (str(tmp_path / "nvidia0"),)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(name)
    module.ROOT, module.VENV, module.BIN = tmp_path, tmp_path / ".venv", tmp_path / ".venv" / "bin"
    module.STAMP = module.VENV / "stamp.json"
    return module


@pytest.fixture
def calls(dev, monkeypatch):
    recorder = Calls()
    monkeypatch.setattr(dev.subprocess, "call", recorder)
    return recorder


def test_installation_follows_changed_requirements_only(dev, calls, capsys):
    assert dev.install("demo,dev") == 0
    assert [command[-1] for command in calls.commands] == [str(dev.VENV), "torch", ".[demo,dev]"]
    assert all("constraints.txt" in command for command in calls.commands[1:])
    errors = capsys.readouterr().err
    assert "step 1 of 2: installing torch (about 200 MB to download, then 280 MB)" in errors
    assert "step 2 of 2: installing .[demo,dev] (the last 280 MB to download)" in errors
    calls.commands.clear()
    assert dev.install("demo,dev") == dev.install("demo") == 0
    assert calls.commands == []
    (dev.ROOT / "constraints.txt").write_text("torch==3")
    assert dev.install("demo") == 0
    assert [command[-1] for command in calls.commands] == ["torch", ".[demo]"]


@pytest.mark.parametrize("sign", ["none", "device", "program", "system"])
def test_torch_is_for_cpus_without_nvidia_device(sign, dev, calls, monkeypatch, capsys):
    if sign == "device":
        Path(dev.NVIDIA[0]).touch()
    elif sign == "program":
        monkeypatch.setattr(dev.shutil, "which", lambda name: f"/usr/bin/{name}")
    elif sign == "system":
        monkeypatch.setattr(dev.sys, "platform", "darwin")
    assert dev.install("all") == 0
    assert calls.torch() == [CPU if sign == "none" else []]
    message = "no NVIDIA device here, so torch's build for CPUs is taken; './dev --torch cuda VERB' takes the"
    assert (message in capsys.readouterr().err) == (sign == "none")


def test_failing_index_is_followed_by_that_of_pip(dev, calls, capsys):
    calls.failing = "--index-url"
    assert dev.install("demo") == 0
    assert calls.torch() == [CPU, []]
    assert f"dev: {URL} gave no torch; trying pip's own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "options"),
    [("cuda", []), ("https://a.example/cpu", [CPU[0], "https://a.example/cpu", *CPU[2:]])],
)
def test_the_build_of_torch_can_be_chosen(build, options, dev, calls, monkeypatch):
    monkeypatch.setenv("POLYHEAD_TORCH", "cpu")  # the option wins
    assert dev.main(["--torch", build, "install"]) == 0
    assert calls.torch() == [options]
    assert dev.main(["install"]) == 0  # the variable is now what the option was
    monkeypatch.delenv("POLYHEAD_TORCH")
    assert dev.main(["install"]) == 0
    assert len(calls.torch()) == 1
    assert dev.main(["--torch", "cpu", "install"]) == 0
    assert calls.torch()[1:] == [[*CPU, "--force-reinstall", "--no-deps"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--torch", "gpu", "demo"], "unknown build of torch 'gpu'; known: cpu, cuda, or the URL of an"),
        (["--torch"], "unknown build of torch 'nothing'; known: cpu, cuda, or the URL of an index"),
        (["--torch", "cpu"], "--torch cpu: name a verb as well; known: install, demo, pages, test"),
    ],
)
def test_a_faulty_choice_of_torch_is_refused(arguments, message, dev, monkeypatch, capsys):
    monkeypatch.setenv("POLYHEAD_TORCH", "cpu")  # so that what main sets is taken back
    assert dev.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"dev: {message}")


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("venv", "cannot make .venv; on Debian or Ubuntu: apt install python3-venv"),
        ("torch", "pip could not install torch (its message is above); mend that and call ./dev again"),
        (".[demo]", "pip could not install .[demo] (its message is above); mend that and call ./dev again"),
    ],
)
def test_failed_installation_is_reported_and_repeated(failing, message, dev, calls, capsys):
    calls.failing = failing
    assert dev.install("demo") == 1
    assert capsys.readouterr().err.endswith(f"dev: {message}\n")
    assert not dev.STAMP.exists()


def test_arguments_and_exit_codes_pass_through(dev, calls, monkeypatch):
    commands = []
    monkeypatch.setattr(dev, "become", lambda command, **environment: commands.append(command) or 7)
    monkeypatch.setattr(dev.os, "chdir", lambda path: None)
    assert dev.main(["demo", "--translate", "March 3, 2027"]) == 7
    assert commands[-1] == [str(dev.BIN / "polyhead"), "demo", "--translate", "March 3, 2027"]
    assert dev.main(["test", "-x", "tests/cli"]) == 7
    assert commands[-1][1:] == ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-x", "tests/cli"]


def test_an_old_python_is_refused_by_name(dev, calls, monkeypatch, capsys):
    monkeypatch.setattr(dev.sys, "version_info", (3, 9, 1))
    assert dev.main(["lint"]) == 1
    assert capsys.readouterr().err == "dev: Python 3.9 is too old; install Python 3.11 or newer\n"
    monkeypatch.setattr(dev.shutil, "which", lambda name: name if name == "python3.12" else None)
    assert dev.main(["lint"]) == 0
    assert calls.commands == [["python3.12", dev.__file__, "lint"]]


def test_help_and_unknown_verbs_need_no_installation(calls, monkeypatch, capsys):
    verbs = "install, demo, pages, test, mutants, lint, docs, bench, acceptance, package, site"
    for argument, code, *expected in (
        ("--help", 0, "./dev demo [...]", ""),
        ("tset", 2, "", f"dev: unknown verb 'tset'; known: {verbs}\n"),
    ):
        monkeypatch.setattr(sys, "argv", ["dev", argument])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        printed = capsys.readouterr()
        assert end.value.code == code and expected[0] in printed.out and printed.err == expected[1]
    assert calls.commands == []
