"""A tokenised text on disk, read through a memory map: one long row of tokens, and where documents begin."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead.data.arrays import FlatWriter, open_flat
from polyhead.data.built import whole
from polyhead.data.files import fingerprint
from polyhead.data.text import Text, TextReport
from polyhead.text.tokenizer import Tokenizer

Ints = NDArray[Any]
LAYOUT = 1  # of the files of a cache; another number makes another cache
DTYPES: dict[str, type[np.generic]] = {"ids": np.int32, "begins": np.int64}


class TokenStore:
    """The ids of a whole text and the places where its documents begin.

    Where there are several documents, each ends with the end-of-sentence token.
    """

    def __init__(self, directory: Path, report: TextReport) -> None:
        self.directory, self.report = directory, report
        self.ids: Ints = open_flat(directory / "ids.npy")
        self.begins: Ints = open_flat(directory / "begins.npy")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def open_or_build(cls, text: Text, tokenizer: Tokenizer, cache: str | os.PathLike[str]) -> TokenStore:
        """The store of a text under the directory ``cache``; made if it is not there or not whole."""
        prints = [fingerprint(path)[0] for path in text.files]
        settings = [LAYOUT, prints, tokenizer.sha256, text.documents, text.share]
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]
        directory = Path(cache) / f"text-{key}"

        def write(temporary: Path) -> TextReport:
            report = TextReport(text.where)
            _write(temporary, text, tokenizer, report)
            return report

        return cls(directory, whole(directory, DTYPES, TextReport, write))


def _write(directory: Path, text: Text, tokenizer: Tokenizer, report: TextReport) -> None:
    ends = text.documents != "file" or len(text.files) > 1
    with ExitStack() as stack:
        out = {name: stack.enter_context(FlatWriter(directory / f"{name}.npy", dtype)) for name, dtype in DTYPES.items()}
        begins = True
        for piece in text.pieces(report):
            if begins:
                out["begins"].append([out["ids"].count])
            out["ids"].append(tokenizer.encode([piece.text])[0])
            if piece.last and ends:
                out["ids"].append([tokenizer.eos_id])
            begins = piece.last
