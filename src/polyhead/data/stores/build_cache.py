"""Cached directories, built once and then read only: complete or absent, and verified by digests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from polyhead.core.atomic_io import atomic_directory
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def cache_dir(root: str | os.PathLike[str], kind: str, settings: object) -> Path:
    """The directory of a store under ``root``; it depends on ``settings``, which must be JSON types."""
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]
    return Path(root) / f"{kind}-{key}"


def build_once(directory: Path, names: Iterable[str], report_type: type[R], write: Callable[[Path], R]) -> R:
    """Return the report (a dataclass) of a directory of NAME.npy files.

    ``write`` builds directory and report if they are missing or incomplete.
    """
    names = list(names)
    if (report := _load_verified(directory, names, report_type)) is not None:
        return report
    try:
        return _build(directory, names, report_type, write)
    except OSError as error:
        raise UserError(
            f"the token cache cannot be written to {directory.parent}: {error.strerror or error}; "
            "choose another directory with data.cache_dir=..."
        ) from None


def _build(directory: Path, names: list[str], report_type: type[R], write: Callable[[Path], R]) -> R:
    """Build the directory under a temporary name and replace a damaged one."""
    try:
        with atomic_directory(directory) as place:
            report = write(place)
            digests = {name: _digest(place / f"{name}.npy") for name in names}
            (place / "store.json").write_text(
                json.dumps({"report": asdict(report), "sha256": digests}, indent=2) + "\n"
            )
            shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        # another process may have been faster with the same content
        if (existing := _load_verified(directory, names, report_type)) is None:
            raise
        return existing
    return report


def _load_verified(directory: Path, names: list[str], report_type: type[R]) -> R | None:
    """The report of a directory whose files all match their digests; None if one is missing or differs."""
    try:
        body = json.loads((directory / "store.json").read_text())
        if any(_digest(directory / f"{name}.npy") != body["sha256"][name] for name in names):
            return None
        return report_type(**body["report"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
