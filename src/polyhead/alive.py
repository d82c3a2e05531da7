"""Whether a process still lives."""

from __future__ import annotations

import os
from pathlib import Path


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: tells it from a later one with the same pid.

    None if there is no such process, 0 where the time cannot be known.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    try:
        # the name in parentheses may hold anything, also spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else 0
    except OSError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])


def alive(pid: int, start: int | None = None) -> bool:
    """Whether this process still runs: the pid lives and, where both are known, the start times agree."""
    now = start_time(pid)
    return now is not None and (not now or not start or now == start)
