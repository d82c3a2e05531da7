"""The kernels of processors with narrower registers than this one's may have: their tests once more, with those."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from polyhead.fast.native import kernels
from polyhead.fast.processor import flags

HERE = Path(__file__).parent
PLUGIN = """
from polyhead.fast import native

native.FLAGS[native.FLAGS.index("-march=native")] = "-march={processor}"
"""


@pytest.mark.skipif(
    kernels() is None or platform.machine() != "x86_64", reason="no such kernel can be compiled here"
)
@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3"])
def test_kernels_of_narrower_registers_pass_their_tests(processor: str, tmp_path: Path) -> None:
    """Of 4 numbers and of 8, without instructions for bf16 and int8."""
    if processor == "x86-64-v3" and "avx2" not in flags():
        pytest.skip("this processor has no registers of 8 numbers")
    (tmp_path / "other_processor.py").write_text(PLUGIN.format(processor=processor))
    tests = [str(HERE / f"test_{name}.py") for name in ("native", "int8", "best", "step")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "other_processor",
            "-p",
            "no:cacheprovider",
            *tests,
        ],
        env=os.environ
        | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert len(list((tmp_path / "polyhead").glob("kernels-*.so"))) == 1, "other kernels were tested"
