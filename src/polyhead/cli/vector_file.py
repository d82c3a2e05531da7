"""Vectors of texts in a file that grows while they are made."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType

from numpy.lib import format as npy
from torch import Tensor

from polyhead.files import named
from polyhead.places import with_directory


class VectorFile:
    """One array (N, ``width``) float32, or a JSON object a text.

    It has its name when all is in it. What was made before a mistake or an interruption stays beside it, and is told.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.shape = path, (0, width)
        self.place = path.resolve() if path.is_symlink() else path  # a link stays one
        self.part = self.place.with_name(f"{self.place.name}.part")

    def __enter__(self) -> VectorFile:
        self.file = with_directory(self.part).open("wb", buffering=0)  # what is counted is there
        self._head()
        self.end = self.file.tell()
        return self

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        """A row for each text."""
        if self.path.suffix == ".npy":
            self._write(vectors.numpy().astype("<f4").tobytes())
        else:
            rows = zip(texts, vectors.tolist(), strict=True)
            lines = (json.dumps({"text": a, "vector": b}, ensure_ascii=False) for a, b in rows)
            self._write("".join(f"{line}\n" for line in lines).encode())
        self.shape, self.end = (self.shape[0] + len(texts), self.shape[1]), self.file.tell()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.file:
            self.file.truncate(self.end)  # without a row that is there in part
            self._head()
        if kind is None:
            self.part.replace(self.place)
        elif self.shape[0]:
            print(f"the vectors of the first {self.shape[0]:,} texts are in {self.part}", file=sys.stderr)
        else:
            self.part.unlink()

    def _head(self) -> None:
        """The size of the array; numpy leaves room for all that it may become."""
        if self.path.suffix == ".npy":
            head = BytesIO()
            npy.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": self.shape})
            self.file.seek(0)
            self._write(head.getvalue())

    def _write(self, content: bytes) -> None:
        """All of it; an OSError names the file, also where the disk is full."""
        left = memoryview(content)
        with named(self.part):
            while left:
                left = left[self.file.write(left) :]
