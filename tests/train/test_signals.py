"""Tests of train/signals.py."""

from __future__ import annotations

import signal
import threading

import pytest

from polyhead.train.signals import stop_on_signal

pytestmark = pytest.mark.usefixtures("unsynced")


def test_a_second_signal_ends_at_once() -> None:
    said: list[str] = []
    with stop_on_signal(said.append) as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said) == 1


def test_a_run_in_another_thread_leaves_signals_alone() -> None:
    answers = []

    def ask() -> None:
        with stop_on_signal(print) as stopped:
            answers.append(stopped())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]
