"""Check whether a process is still alive."""

from __future__ import annotations

import os
from pathlib import Path


def process_start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; distinguishes it from a later one with the same pid.

    None if there is no such process, 0 if the time is unknown.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    try:
        # the process name in parentheses may itself contain spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else 0
    except OSError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])


def is_process_alive(pid: int, start_ticks: int | None = None) -> bool:
    """Whether the process is running: the pid exists and, where both are known, the start times agree."""
    now = process_start_time(pid)
    return now is not None and (not now or not start_ticks or now == start_ticks)
