import pytest

from polyhead.core.errors import UserError
from polyhead.cost.hardware import HARDWARE, get_hardware


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes", "balance"),
    [("h100", 989, 80, 295), ("h200", 989, 141, 206), ("a100", 312, 80, 153)],
)
def test_peaks_equal_the_data_sheets(name, tflops, gigabytes, balance):
    """NVIDIA's dense bf16 TFLOP/s, memory, and operations per byte of memory bandwidth."""
    hardware = get_hardware(name)
    assert hardware.flops["bf16"] / 1e12 == pytest.approx(tflops, rel=0.001)
    assert hardware.memory / 1e9 == gigabytes
    assert hardware.flops["bf16"] / hardware.memory_bandwidth == pytest.approx(balance, rel=0.01)


def test_every_row_is_complete():
    for name, hardware in HARDWARE.items():
        assert hardware.name == name
        assert set(hardware.flops) == {"fp32", "bf16", "fp16"}
        assert 0 < hardware.efficiency < 1
        assert hardware.inter_node_bandwidth < hardware.intra_node_bandwidth < hardware.memory_bandwidth
    with pytest.raises(UserError, match=r"unknown hardware 'h10'; did you mean 'h100'\? Known: a100, cpu"):
        get_hardware("h10")
