import os
import subprocess
import sys

import pytest
import torch

from polyhead.kernels import malloc_tuning
from polyhead.kernels.malloc_tuning import CAPACITY_NAMES, count_kernels_to_keep, tune_malloc

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


KERNELS_CODE = """
import torch
from polyhead.kernels.malloc_tuning import tune_malloc

tune_malloc()
x, weight = torch.randn(256, 64), torch.randn(64, 64)
for rows in [*range(100, 140)] * 2:
    torch.ops.mkldnn._linear_pointwise(x[:rows], weight, None, "none", [], "")
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="not applicable: kernels of oneDNN")
@pytest.mark.parametrize(("by_user", "n_compiled"), [({}, 40), (dict.fromkeys(CAPACITY_NAMES, "8"), 80)])
def test_kernels_of_forty_shapes_are_compiled_once(by_user, n_compiled):
    kept = {name: value for name, value in os.environ.items() if name not in CAPACITY_NAMES}
    process = subprocess.run(
        [sys.executable, "-c", KERNELS_CODE],
        capture_output=True,
        text=True,
        env=kept | by_user | {"ONEDNN_VERBOSE": "profile_create"},
    )
    assert not process.stderr
    assert process.stdout.count("create:cache_miss") == n_compiled


def test_kernels_to_keep_by_memory():
    assert count_kernels_to_keep(2**34) == 1024 and count_kernels_to_keep(2**34, 4) == 256
    assert count_kernels_to_keep(2**42) == 2**14  # enough for any corpus
    assert count_kernels_to_keep(0) == 1024  # what oneDNN keeps by itself


@pytest.mark.parametrize(("n_local", "divisor"), [("2", 2), ("0", 1), ("x", 1), ("", 1)])
def test_processes_of_a_machine_share_its_memory(n_local, divisor, monkeypatch):
    monkeypatch.setattr(malloc_tuning, "get_machine_memory", lambda: 2**34)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", n_local)
    for name in CAPACITY_NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    tune_malloc()
    assert [os.environ[name] for name in CAPACITY_NAMES] == [str(1024 // divisor)] * 2
