"""The kernels of processors that can do less than this one may: their tests once more, with those."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.cpu_features import cpu_flags

HERE = Path(__file__).parent
PLUGIN = """
from polyhead.kernels import build_extension

at = build_extension.COMPILER_FLAGS.index("-march=native")
build_extension.COMPILER_FLAGS[at : at + 1] = {flags}
"""
LESS = {
    "registers of 4 numbers": (["-march=x86-64-v2"], "sse4_2"),
    "registers of 8 numbers": (["-march=x86-64-v3"], "avx2"),
    "no instructions for bf16 and int8": (["-march=x86-64-v4"], "avx512vl"),
    "no tiles": (["-march=native", "-mno-amx-int8", "-mno-amx-bf16"], "amx_int8"),
}


@pytest.mark.skipif(
    load_kernels() is None or platform.machine() != "x86_64", reason="no such kernel can be compiled here"
)
@pytest.mark.parametrize(
    "less", [pytest.param(less, marks=[pytest.mark.slow] * (i > 0)) for i, less in enumerate(LESS)]
)
def test_kernels_that_do_with_less_pass_their_tests(less: str, tmp_path: Path) -> None:
    """What the others have is taken from the compiler."""
    named, needed = LESS[less]
    if needed not in cpu_flags():
        pytest.skip(f"this processor has no {needed}")
    (tmp_path / "other_processor.py").write_text(PLUGIN.format(flags=named))
    tests = [
        str(HERE / f"test_{name}.py")
        for name in (
            "build_extension",
            "linear",
            "attention",
            "logsumexp",
            "logits",
            "int_linear",
            "int4",
            "int8",
            "fused_step",
            "program",
        )
    ]
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
        | {
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "XDG_CACHE_HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        },
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert len(list((tmp_path / "polyhead").glob("kernels-*.so"))) == 1, "other kernels were tested"
