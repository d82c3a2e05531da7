"""The comparison as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhead.compare.plan import Plan


def write_page(path: Path, rows: Sequence[Mapping[str, Any]], plan: Plan) -> None:
    """Not yet."""
