"""Embeddings in a file that grows while they are computed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.lib import format as npy
from torch import Tensor

from polyhead.cli.partial_file import PartialFile

if TYPE_CHECKING:
    from polyhead.evaluate.embed import TokenEmbeddings


def open_embedding_file(path: Path, shape: tuple[int, ...]) -> PartialFile:
    """Open a file for one array (N, *``shape``) float32 (.npy), or one JSON object per text."""

    def make_header(texts: int) -> bytes:
        """Return the header with the size of the array; numpy reserves room for any later size."""
        buffer = BytesIO()
        npy.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (texts, *shape)})
        return buffer.getvalue()

    return PartialFile(path, "vectors", make_header if path.suffix == ".npy" else None)


def encode_rows(
    path: Path, texts: Sequence[str], vectors: Tensor, layers: Sequence[int] | None = None
) -> bytes:
    """Encode a row of the file for each text: its vector, or the vectors of its ``layers``."""
    if path.suffix == ".npy":
        return vectors.numpy().astype("<f4").tobytes()
    names = {} if layers is None else {"layers": list(layers)}
    key = "vector" if layers is None else "vectors"
    pairs = zip(texts, vectors.tolist(), strict=True)
    return _encode_json_lines({"text": text, **names, key: vector} for text, vector in pairs)


def encode_token_rows(
    texts: Sequence[str], embeddings: Sequence[TokenEmbeddings], layers: Sequence[int] | None = None
) -> bytes:
    """Encode a JSON object for each text: its tokens and their vectors, (T, C) or (L, T, C)."""
    names = {} if layers is None else {"layers": list(layers)}
    return _encode_json_lines(
        {"text": text, "tokens": one.tokens, **names, "vectors": one.vectors.tolist()}
        for text, one in zip(texts, embeddings, strict=True)
    )


def _encode_json_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
