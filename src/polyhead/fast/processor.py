"""What the system says of this machine's processor."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def processor() -> dict[str, str]:
    """The lines that Linux has of its first core, by name, such as ``vendor_id``; none on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def flags() -> list[str]:
    """Its instruction sets, as far as they are known."""
    return (processor().get("flags") or processor().get("Features", "")).split()


def is_amd() -> bool:
    """Whether AMD made it."""
    return processor().get("vendor_id") == "AuthenticAMD"
