"""Shared by the tests of propose_recipe."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905

DRAWN = random.Random(1)

SENTENCES = [" ".join(DRAWN.choices(WORDS, k=6)) for _ in range(60)]


def table(place: Path, name: str, rows: Sequence[dict[str, Any]]) -> str:
    path = place / name
    columns = list(rows[0])
    if name.endswith(".jsonl"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        part = "," if ".csv" in name else "\t"
        head = [] if ".bare" in name else [columns]
        text = "".join(
            part.join(map(str, cells)) + "\n" for cells in [*head, *(row.values() for row in rows)]
        )
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return name


TALKS = [
    {"messages": [{"role": "user", "content": s}, {"role": "assistant", "content": "yes"}]} for s in SENTENCES
]


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., list[str]]:
    def write(**files: Sequence[str]) -> list[str]:
        for name, lines in files.items():
            (tmp_path / name.replace("_", ".")).write_text("".join(f"{line}\n" for line in lines))
        return [name.replace("_", ".") for name in files]

    return write
