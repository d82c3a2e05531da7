"""A tokenised text on disk, read through a memory map: one long row of tokens, and where documents begin."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from polyhead.data.arrays import Ints, flat_files, open_flat
from polyhead.data.built import home, whole
from polyhead.data.files import fingerprint
from polyhead.data.text import Text, TextReport
from polyhead.text.tokenizer import Tokenizer

LAYOUT = 2  # of the files of a cache; another number makes another cache
DTYPES: dict[str, type[np.generic]] = {"ids": np.int32, "begins": np.int64}


class TokenStore:
    """The ids of a whole text and the places where its documents begin.

    Where there may be several (``Text.marked``), each begins with the end-of-sentence token, and so the end of one is
    the beginning of the next; one more ends the last. So a model learns how documents begin from that token alone.
    Those that stand ``apart`` begin with tokens of their own, such as the <s> of Llama, which no end predicts.
    """

    def __init__(self, directory: Path, report: TextReport, apart: bool = False) -> None:
        self.directory, self.report, self.apart = directory, report, apart
        self.ids: Ints = open_flat(directory / "ids.npy")
        self.begins: Ints = open_flat(directory / "begins.npy")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def open_or_build(
        cls, text: Text, tokenizer: Tokenizer, cache: str | os.PathLike[str], begin: Sequence[int] = ()
    ) -> TokenStore:
        """The store of a text under the directory ``cache``; made if it is not there or not whole.

        ``begin``: what a document begins with, if not with the end of the one before.
        """
        apart = bool(begin) and list(begin) != [tokenizer.eos_id]
        prints = [fingerprint(path) for path in text.files]
        settings = [
            LAYOUT,
            prints,
            tokenizer.sha256,
            text.documents,
            text.share,
            *([text.table, text.columns, "as written"] if text.table else []),
            *([list(begin)] if apart else []),
        ]
        directory = home(cache, "text", settings)
        write = partial(_write, text, tokenizer, begin if apart else ())
        return cls(directory, whole(directory, DTYPES, TextReport, write), apart)


def _write(text: Text, tokenizer: Tokenizer, begin: Sequence[int], directory: Path) -> TextReport:
    report = TextReport(text.where)
    with flat_files(directory, DTYPES) as out:
        mark = [tokenizer.eos_id] if text.marked else []
        begins = True
        for piece in text.pieces(report):
            if begins:
                if begin and out["ids"].count:
                    out["ids"].append(mark)
                out["begins"].append([out["ids"].count])
                out["ids"].append(begin or mark)
            out["ids"].append(tokenizer.encode([piece.text])[0])
            begins = piece.last
        out["ids"].append(mark)
    return report
