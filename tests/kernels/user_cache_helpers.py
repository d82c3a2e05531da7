import os
from pathlib import Path


def set_owner(monkeypatch, path, uid):
    """Let a path appear to belong to a user, as only root could do with chown."""
    real, inode = Path.stat, path.lstat().st_ino

    def stat(self, *, follow_symlinks=True):
        status = real(self, follow_symlinks=follow_symlinks)
        return os.stat_result((*status[:4], uid, *status[5:10])) if status.st_ino == inode else status

    monkeypatch.setattr(Path, "stat", stat)
