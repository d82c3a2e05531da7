import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels.cpu_features import cpu_flags

PLUGIN = """
from polyhead.kernels import build_extension

at = build_extension.COMPILER_FLAGS.index("-march=native")
build_extension.COMPILER_FLAGS[at : at + 1] = {flags}
"""
FLAGS = {  # compiler flags, and the feature that they need of this processor
    "4-float registers": (["-march=x86-64-v2"], "sse4_2"),
    "8-float registers": (["-march=x86-64-v3"], "avx2"),
    "no bf16 or int8": (["-march=x86-64-v4"], "avx512vl"),
    "no tiles": (["-march=native", "-mno-amx-int8", "-mno-amx-bf16"], "amx_int8"),
}
NAMES = "build_extension linear attention logits int_linear int4 int8 fused_step program"
OPTIONS = "-m pytest -q -x -p compiler_flags -p no:cacheprovider"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="not applicable: flags of x86-64")
@needs_kernels
@pytest.mark.parametrize("instructions", FLAGS)
def test_kernels_for_other_instruction_sets(instructions, tmp_path):
    flags, feature = FLAGS[instructions]
    if feature not in cpu_flags():
        pytest.skip(f"not applicable: this processor has no {feature}")
    (tmp_path / "compiler_flags.py").write_text(PLUGIN.format(flags=flags))
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in NAMES.split()]
    process = subprocess.run(
        [sys.executable, *OPTIONS.split(), *files],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        | {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout[-2000:]
    assert len(list((tmp_path / "polyhead").glob("kernels-*.so"))) == 1, "other kernels were tested"
