import os

from polyhead.core.atomic_io import is_process_alive, process_start_time


def test_process_is_identified_by_its_start_time():
    assert is_process_alive(os.getpid())
    assert is_process_alive(os.getpid(), process_start_time(os.getpid()))
    assert not is_process_alive(os.getpid(), process_start_time(os.getpid()) + 1)
    assert process_start_time(4194303) is None and not is_process_alive(1 << 40)
