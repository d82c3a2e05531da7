"""Whether a process lives is told from a later one with the same number."""

import os

from polyhead.core.process_liveness import is_process_alive, process_start_time


def test_start_times_tell_processes_apart():
    assert is_process_alive(os.getpid())
    assert is_process_alive(os.getpid(), process_start_time(os.getpid()))
    assert not is_process_alive(os.getpid(), process_start_time(os.getpid()) + 1)
    assert process_start_time(4194303) is None
    assert not is_process_alive(1 << 40)
