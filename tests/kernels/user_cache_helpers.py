"""Shared by the tests of files in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def set_owner(monkeypatch: pytest.MonkeyPatch, path: Path, uid: int) -> None:
    """Let a path appear to belong to a user, as only root could do with chown."""
    real, inode = Path.stat, path.lstat().st_ino

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = real(self, follow_symlinks=follow_symlinks)
        return os.stat_result((*status[:4], uid, *status[5:10])) if status.st_ino == inode else status

    monkeypatch.setattr(Path, "stat", stat)
