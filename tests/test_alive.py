"""Whether a process lives is told from a later one with the same number."""

import os

from polyhead.alive import alive, start_time


def test_start_times_tell_processes_apart():
    assert alive(os.getpid())
    assert alive(os.getpid(), start_time(os.getpid()))
    assert not alive(os.getpid(), start_time(os.getpid()) + 1)
    assert start_time(4194303) is None
    assert not alive(1 << 40)
