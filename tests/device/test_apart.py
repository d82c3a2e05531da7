"""The tests of another device, in a process of their own: one that has such a device can no longer be
forked.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["models", "questions", "runs", "cells"])
def test_another_device(name: str) -> None:
    """Models that say and learn what they do on the CPU, and do not wait for numbers; runs that learn and are
    used there; cells of a comparison.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--timeout=500", str(HERE / f"{name}.py")],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
