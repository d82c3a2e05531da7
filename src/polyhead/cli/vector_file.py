"""Vectors of texts in a file that grows while they are made."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from numpy.lib import format as npy
from torch import Tensor

from polyhead.places import with_directory


class VectorFile:
    """One array (N, ``width``) float32, or a JSON object a text.

    It has its name when all is in it. What was made before a mistake or an interruption stays beside it, and is told.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.part, self.shape = path, path.with_name(f"{path.name}.part"), (0, width)

    def __enter__(self) -> VectorFile:
        self.file = with_directory(self.part).open("wb")
        self._head()
        return self

    def add(self, texts: Sequence[str], vectors: Tensor) -> None:
        """A row for each text."""
        if self.path.suffix == ".npy":
            self.file.write(vectors.numpy().astype("<f4").tobytes())
        else:
            for text, vector in zip(texts, vectors.tolist(), strict=True):
                line = json.dumps({"text": text, "vector": vector}, ensure_ascii=False)
                self.file.write(f"{line}\n".encode())
        self.shape = (self.shape[0] + len(texts), self.shape[1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.file:
            self._head()
        if kind is None:
            self.part.replace(self.path)
        elif self.shape[0]:
            print(f"the vectors of the first {self.shape[0]:,} texts are in {self.part}", file=sys.stderr)
        else:
            self.part.unlink()

    def _head(self) -> None:
        """The size of the array; numpy leaves room for all that it may become."""
        if self.path.suffix == ".npy":
            self.file.seek(0)
            npy.write_array_header_1_0(
                self.file, {"descr": "<f4", "fortran_order": False, "shape": self.shape}
            )
