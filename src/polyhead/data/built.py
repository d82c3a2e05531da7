"""Directories that are made once and then only read: whole or absent, and known by their digests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from polyhead.errors import UserError

R = TypeVar("R")


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
    """Write into a temporary directory and rename it into place."""
    temporary = directory.with_name(f"{directory.name}.tmp-{os.getpid()}")
    _remove_left_over(directory)
    temporary.mkdir(parents=True)
    try:
        report = write(temporary)
        digests = {name: _digest(temporary / f"{name}.npy") for name in names}
        (temporary / "store.json").write_text(
            json.dumps({"report": _fields(report), "sha256": digests}, indent=2) + "\n"
        )
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(directory, ignore_errors=True)
        try:
            os.rename(temporary, directory)
        except OSError:
            # else another process was faster with the same content
            if _verified(directory, names, kind) is None:
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def _fields(report: Any) -> dict[str, Any]:
    return asdict(report)


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


def _remove_left_over(directory: Path) -> None:
    """Remove what builds of the same store left when their process was killed."""
    for path in directory.parent.glob(f"{directory.name}.tmp-*"):
        pid = path.name.rpartition("-")[2]
        if not pid.isdigit() or int(pid) == os.getpid() or not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
