import sys

import pytest

from polyhead.core import progress


@pytest.mark.parametrize(
    ("is_terminal", "interval", "expected"),
    [(True, 10, "\ra\x1b[K\rb\x1b[K\r\x1b[K"), (False, 10, "b\n"), (False, 0, "a\nb\n")],
)
def test_progress_is_one_line_or_one_sometimes(is_terminal, interval, expected, capsys, monkeypatch):
    times = iter([0, 9, *[11] * 5])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(progress, "INTERVAL", interval)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    show = progress.make_progress()
    for text in ("a", "b", ""):
        show(text)
    assert capsys.readouterr().err == expected
