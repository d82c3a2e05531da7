"""Vectors of texts in a file that grows while they are made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from numpy.lib import format as npy
from torch import Tensor

from polyhead.cli.part_file import PartFile


def vector_file(path: Path, width: int) -> PartFile:
    """For one array (N, ``width``) float32, or a JSON object a text, as the name says."""

    def head(texts: int) -> bytes:
        """The size of the array; numpy leaves room for all that it may become."""
        written = BytesIO()
        npy.write_array_header_1_0(written, {"descr": "<f4", "fortran_order": False, "shape": (texts, width)})
        return written.getvalue()

    return PartFile(path, "vectors", head if path.suffix == ".npy" else None)


def rows(path: Path, texts: Sequence[str], vectors: Tensor) -> bytes:
    """A row of that file for each text."""
    if path.suffix == ".npy":
        return vectors.numpy().astype("<f4").tobytes()
    pairs = zip(texts, vectors.tolist(), strict=True)
    return "".join(
        f"{json.dumps({'text': text, 'vector': vector}, ensure_ascii=False)}\n" for text, vector in pairs
    ).encode()
