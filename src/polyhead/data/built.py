"""Directories that are made once and then only read: whole or absent, and known by their digests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from polyhead.errors import UserError
from polyhead.files import whole_directory

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def home(cache: str | os.PathLike[str], kind: str, settings: object) -> Path:
    """The directory of a store under ``cache``: other settings, of JSON's types, make another one."""
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]
    return Path(cache) / f"{kind}-{key}"


def whole(directory: Path, names: Iterable[str], report: type[R], write: Callable[[Path], R]) -> R:
    """The report (a dataclass) of a directory of NAME.npy files; ``write`` makes both if they are not there, or not whole."""
    names = list(names)
    if (found := _verified(directory, names, report)) is not None:
        return found
    try:
        return _build(directory, names, report, write)
    except OSError as error:
        raise UserError(
            f"the token cache cannot be written to {directory.parent}: {error.strerror or error}; "
            "choose another directory with data.cache=..."
        ) from None


def _build(directory: Path, names: list[str], kind: type[R], write: Callable[[Path], R]) -> R:
    """Write it beside, and put it in place of what is damaged."""
    try:
        with whole_directory(directory) as place:
            report = write(place)
            digests = {name: _digest(place / f"{name}.npy") for name in names}
            (place / "store.json").write_text(
                json.dumps({"report": asdict(report), "sha256": digests}, indent=2) + "\n"
            )
            shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        # another process may have been faster with the same content
        if (found := _verified(directory, names, kind)) is None:
            raise
        return found
    return report


def _verified(directory: Path, names: list[str], kind: type[R]) -> R | None:
    """The report of a directory whose every file is as it was written; None if anything is missing or differs."""
    try:
        body = json.loads((directory / "store.json").read_text())
        if any(_digest(directory / f"{name}.npy") != body["sha256"][name] for name in names):
            return None
        return kind(**body["report"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
