"""Tests of __main__.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def polyhead_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polyhead", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


def test_python_m_polyhead_has_the_exit_code(tmp_path: Path) -> None:
    done = polyhead_process("train", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stderr) == (2, f"polyhead: {tmp_path / 'none.yaml'}: no such file\n")
