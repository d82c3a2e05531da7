"""The report for reports says enough, and nothing private."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest
import torch

from polyhead.cli import main


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
