"""Tests of cli/env.py: the report for bug reports has versions, and nothing private."""

import os
import platform
import re
import socket
import tomllib
from pathlib import Path

import pytest
import torch

from polyhead.kernels import build_extension
from polyhead.kernels.build_extension import KernelsStatus


def test_report_has_versions_and_no_private_data(cli, monkeypatch):
    host, names = "machine-of-a-person", platform.uname()
    monkeypatch.setattr(platform, "node", lambda: host)
    monkeypatch.setattr(platform, "uname", lambda: names._replace(node=host))
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    out = cli("env").out
    versions = (f"torch {torch.__version__}", platform.python_version())
    assert all(text in out for text in (*versions, f"{torch.get_num_threads()} used by torch"))
    private = {host, str(Path.home()), os.getcwd(), str(Path(torch.__file__).parent)}
    assert not [word for word in private if len(word) > 3 and word in out]


def test_report_names_the_packages_of_every_extra(cli):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (line,) = [row for row in cli("env").out.splitlines() if row.startswith("extras ")]
    extras = dict(re.findall(r"(\w+) \(([^)]*)\)", line))
    pattern = r"([\w-]+) (?:\d|not installed)"
    packages = {name: set(re.findall(pattern, text)) for name, text in extras.items()}
    expected = project["optional-dependencies"].items()
    names = project["optional-dependencies"].keys() - {"all", "dev", "site"}
    expected = {name: {re.split(r"[>=<]", one)[0] for one in dict(expected)[name]} for name in names}
    assert packages == expected


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
def test_env_states_whether_kernels_are_used(status, row, cli, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches/me")
    monkeypatch.setenv("HOME", "/homes/me")
    monkeypatch.setattr(build_extension, "inspect_kernels", lambda: status)
    assert f"kernels      {row}\n" in cli("env").out
