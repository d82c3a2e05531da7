import subprocess
import sys

import pytest

CODE = """
import torch
from polyhead.kernels.malloc_tuning import tune_malloc

def get_resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

for reuse in (False, True):
    tune_malloc(reuse=not reuse)
    tune_malloc(reuse=reuse)  # the last call counts
    tensors = [torch.ones(2**18) for _ in range(64)] + [torch.ones(2**24)]  # 64 MiB each
    pins = [torch.ones(8) for _ in range(64)]
    before = get_resident_bytes()
    tensors.clear()
    print(before - get_resident_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="not applicable: settings of glibc")
def test_freed_tensors_are_returned_without_reuse():
    process = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    without_reuse, with_reuse = map(int, process.stdout.split())
    assert without_reuse > 120 * 2**20 and with_reuse < 2**20
