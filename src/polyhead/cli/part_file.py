"""A file that grows while what goes into it is made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from polyhead.files import named
from polyhead.places import with_directory


class PartFile:
    """It has its name when all is in it. What was made before a mistake or an interruption stays beside it, and is told.

    ``what`` is made of each text ("vectors"); ``head`` gives the beginning of a file of so many texts, always as long. A link
    stays one, and a device or a pipe takes the content as it comes.
    """

    def __init__(self, path: Path, what: str, head: Callable[[int], bytes] | None = None) -> None:
        self.what, self.head, self.texts = what, head, 0
        self.straight = head is None and path.exists() and not path.is_file()
        self.place = path.resolve() if path.is_symlink() and not self.straight else path
        self.part = path if self.straight else self.place.with_name(f"{self.place.name}.part")

    def __enter__(self) -> PartFile:
        self.file = with_directory(self.part).open("wb", buffering=0)  # what is counted is there
        self._begin()
        self.end = 0 if self.straight else self.file.tell()
        return self

    def add(self, content: bytes, texts: int) -> None:
        """What was made of so many texts more."""
        self._write(content)
        self.texts += texts
        self.end += len(content)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.file:
            if self.straight:
                return
            self.file.truncate(self.end)  # without what is there of a text in part
            self._begin()
        if kind is None:
            self.part.replace(self.place)
        elif self.texts:
            print(f"the {self.what} of the first {self.texts:,} texts are in {self.part}", file=sys.stderr)
        else:
            self.part.unlink()

    def _begin(self) -> None:
        if self.head is not None:
            self.file.seek(0)
            self._write(self.head(self.texts))

    def _write(self, content: bytes) -> None:
        """All of it; an OSError names the file, also where the disk is full."""
        left = memoryview(content)
        with named(self.part):
            while left:
                left = left[self.file.write(left) :]
