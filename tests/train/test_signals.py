import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyhead.train.signals import stop_on_signal


def test_second_signal_ends_at_once():
    lines = []
    with stop_on_signal(lines.append) as should_stop:
        assert not should_stop()
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(lines) == 1


def test_training_in_another_thread_ignores_signals():
    def run():
        with stop_on_signal(print) as should_stop:
            return should_stop()

    with ThreadPoolExecutor() as pool:
        assert pool.submit(run).result() is False
