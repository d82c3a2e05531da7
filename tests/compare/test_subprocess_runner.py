import signal
import sys
from unittest.mock import Mock

import pytest

from polyhead.compare.subprocess_runner import StopHandler, run_subprocess


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_exit_code_or_signal_of_trial(tmp_path, monkeypatch, script, code):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-m polyhead compare --cell {tmp_path}" ] && {script}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    stop = StopHandler()
    assert run_subprocess(tmp_path, stop) == code
    assert stop.child is None and not stop.is_requested


def test_stop_signal_is_forwarded_to_trial():
    stop = StopHandler()
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT, None)
    stop.child = Mock()
    stop(signal.SIGINT, None)
    stop.child.send_signal.assert_called_once_with(signal.SIGTERM)
    assert stop.is_requested
