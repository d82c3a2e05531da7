"""The report for reports says enough, and nothing private."""

from __future__ import annotations

import os
import platform
import re
import socket
import tomllib
from pathlib import Path

import pytest
import torch

from polyhead.cli import main
from polyhead.kernels import build_extension
from polyhead.kernels.build_extension import KernelsStatus


def test_the_report_says_what_matters_and_nothing_private(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = platform.uname()
    monkeypatch.setattr(platform, "node", lambda: "machine-of-a-person")
    monkeypatch.setattr(platform, "uname", lambda: names._replace(node="machine-of-a-person"))
    monkeypatch.setattr(socket, "gethostname", lambda: "machine-of-a-person")
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"torch {torch.__version__}" in out
    assert platform.python_version() in out
    assert f"{torch.get_num_threads()} used by torch" in out
    private = {socket.gethostname(), str(Path.home()), os.getcwd(), str(Path(torch.__file__).parent)}
    assert not [word for word in private if len(word) > 3 and word in out]


def test_the_report_names_every_extra_with_all_that_it_brings(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert main(["env"]) == 0
    (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("extras ")]
    said = {
        extra: set(re.findall(r"([\w-]+) (?:\d|not installed)", names))
        for extra, names in re.findall(r"(\w+) \(([^)]*)\)", line)
    }
    wanted = {
        extra: {re.split(r"[>=<]", name)[0] for name in names}
        for extra, names in project["optional-dependencies"].items()
        if extra not in {"all", "dev", "site"}
    }
    assert said == wanted


@pytest.mark.parametrize(
    ("status", "row"),
    [
        (KernelsStatus(None, Path("/caches/me/k.so")), "used: $XDG_CACHE_HOME/k.so"),
        (KernelsStatus(None, Path("/homes/me/.cache/kernels-1.so")), "used: ~/.cache/kernels-1.so"),
        (
            KernelsStatus(None, reason="g++ failed: error: x; to compile again, delete /caches/me/k.failed"),
            "not used: g++ failed: error: x; to compile again, delete $XDG_CACHE_HOME/k.failed",
        ),
    ],
)
def test_env_states_whether_kernels_are_used(
    status: KernelsStatus, row: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches/me")
    monkeypatch.setenv("HOME", "/homes/me")
    monkeypatch.setattr(build_extension, "inspect_kernels", lambda: status)
    assert main(["env"]) == 0
    assert f"kernels      {row}\n" in capsys.readouterr().out
