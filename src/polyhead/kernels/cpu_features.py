"""Vendor and instruction sets of this machine's CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def cpu_info() -> dict[str, str]:
    """The fields of the first core in Linux's /proc/cpuinfo, such as ``vendor_id``; {} on other systems."""
    try:
        first_core = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first_core.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def cpu_flags() -> list[str]:
    """Instruction sets of the CPU; [] if unknown."""
    return (cpu_info().get("flags") or cpu_info().get("Features", "")).split()


def is_amd() -> bool:
    """Whether the CPU is AMD's."""
    return cpu_info().get("vendor_id") == "AuthenticAMD"
