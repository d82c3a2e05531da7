"""A byte stream of generated lines, for files that do not contain lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any


class LineStream(io.RawIOBase):
    """Raw stream over ``pieces`` of bytes; closing it closes ``file``, the source of the pieces."""

    def __init__(self, pieces: Iterator[bytes], file: Any) -> None:
        self.pieces, self.file, self.rest = pieces, file, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.rest:
            self.rest = memoryview(next(self.pieces, b""))
        n = min(len(buffer), len(self.rest))
        buffer[:n] = self.rest[:n]
        self.rest = self.rest[n:]
        return n

    def close(self) -> None:
        self.file.close()
        super().close()
