"""Embeddings in a file that grows while they are computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from numpy.lib import format as npy
from torch import Tensor

from polyhead.cli.partial_file import PartialFile


def open_embedding_file(path: Path, width: int) -> PartialFile:
    """Open a file for one array (N, ``width``) float32 (.npy), or one JSON object per text."""

    def make_header(texts: int) -> bytes:
        """Return the header with the size of the array; numpy reserves room for any later size."""
        buffer = BytesIO()
        npy.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (texts, width)})
        return buffer.getvalue()

    return PartialFile(path, "vectors", make_header if path.suffix == ".npy" else None)


def encode_rows(path: Path, texts: Sequence[str], vectors: Tensor) -> bytes:
    """Encode a row of the file for each text."""
    if path.suffix == ".npy":
        return vectors.numpy().astype("<f4").tobytes()
    pairs = zip(texts, vectors.tolist(), strict=True)
    return "".join(
        f"{json.dumps({'text': text, 'vector': vector}, ensure_ascii=False)}\n" for text, vector in pairs
    ).encode()
