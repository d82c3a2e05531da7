"""Progress of long tasks on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

INTERVAL = 10.0  # seconds between lines


def every_few_seconds(show: Callable[[str], None]) -> Callable[[str], None]:
    """``show``, called at most once in ``INTERVAL`` seconds, and not before the first of them are over."""
    last = time.monotonic()

    def show_sometimes(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= INTERVAL:
            show(text)
            last = time.monotonic()

    return show_sometimes


def make_progress() -> Callable[[str], None]:
    """A function that shows a state, and '' at the end: at a terminal one line that is overwritten."""
    if sys.stderr.isatty():
        return lambda text: print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
    return every_few_seconds(_print_line)


def _print_line(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)
