"""What a process keeps of freed memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, torch
from polyhead.kernels.malloc_tuning import tune_malloc

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

tune_malloc()
tune_malloc(reuse=sys.argv[1] == "True")  # the last call holds
held = [torch.ones(2**18) for _ in range(64)] + [torch.ones(2**24)]  # 64 MB each
pins = [torch.ones(8) for _ in range(64)]
before = resident()
held.clear()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_freed_tensors_are_returned_without_reuse() -> None:
    returned = [
        int(subprocess.run([sys.executable, "-c", CODE, reuse], capture_output=True, text=True).stdout)
        for reuse in ("True", "False")
    ]
    assert returned[0] < 2**20 and returned[1] > 120 * 2**20
