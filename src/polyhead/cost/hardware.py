"""Published peaks and bandwidths of accelerators, for estimates of training time and memory per rank."""

from __future__ import annotations

from typing import Literal, NamedTuple

from polyhead.core.errors import unknown_name_error

CollectiveBackend = Literal["nccl", "gloo"]


class Hardware(NamedTuple):
    """The accelerator of one rank, and its links to the other ranks. Bandwidths are bytes per second.

    ``efficiency`` is the fraction of the peak that matrix products reach, the one number of this table that
    is calibrated on published training times instead of read from a data sheet.
    """

    name: str
    flops: dict[str, float]  # dense peak FLOP/s by precision
    memory: float  # bytes
    memory_bandwidth: float
    intra_node_bandwidth: float  # what a rank sends to ranks of its machine, one direction
    inter_node_bandwidth: float  # what a rank sends to other machines
    nproc_per_node: int  # ranks per machine
    efficiency: float
    backend: CollectiveBackend = "nccl"  # what torch.distributed sends with


_HOPPER = {"fp32": 66.9e12, "bf16": 989.4e12, "fp16": 989.4e12}  # fp32 without TF32, PyTorch's default

HARDWARE = {
    hardware.name: hardware
    for hardware in (
        # NVIDIA H100 and H200 data sheets (SXM): NVLink 900 GB/s in both directions together; 400 Gb/s of
        # network per GPU. Efficiency: Llama 3.1 8B in bf16, torchtitan, benchmarks/llama3_h100_202412
        Hardware("h100", _HOPPER, 80e9, 3.35e12, 450e9, 50e9, 8, 0.38),
        Hardware("h200", _HOPPER, 141e9, 4.8e12, 450e9, 50e9, 8, 0.38),
        # NVIDIA A100 80 GB data sheet (SXM): NVLink 600 GB/s in both directions together; 200 Gb/s of network
        # per GPU. Efficiency: Narayanan et al., 2021, table 1
        Hardware(
            "a100", {"fp32": 19.5e12, "bf16": 312e12, "fp16": 312e12}, 80e9, 2.039e12, 300e9, 25e9, 8, 0.57
        ),
        # one socket of AMD EPYC 9654: 96 cores at 2.4 GHz, 32 fp32 operations per cycle, twice as many in
        # bf16, 12 channels of DDR5-4800; 25 Gb/s of network. Its efficiency is not calibrated.
        Hardware(
            "cpu",
            {"fp32": 7.37e12, "bf16": 14.7e12, "fp16": 7.37e12},
            384e9, 460.8e9, 50e9, 3.125e9, 2, 0.5, "gloo",
        ),
    )
}  # fmt: skip


def get_hardware(name: str) -> Hardware:
    """The row of the table with this name; a UserError for an unknown one."""
    if name not in HARDWARE:
        raise unknown_name_error("hardware", name, HARDWARE)
    return HARDWARE[name]
