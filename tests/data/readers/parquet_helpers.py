"""Shared by the tests of parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow.parquet import write_table

from polyhead.data.readers import parquet

N = 2 * parquet._BATCH_ROWS + 77

TEXTS = ["", "a dog", 'two\nlines "quoted"\t', "犬 \u2028 🐕", " b" * 5000]

ROWS: list[dict[str, Any]] = [
    {
        "label": i % 3,
        "name": "ab"[i % 2],
        "text": None if i % 97 == 5 else f"{TEXTS[i % len(TEXTS)]}{i}",
        "translation": {"de": f"Hund {i}", "en": TEXTS[i % 2]},
        "messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": TEXTS[i % 5]}],
        "score": i / 7,
    }
    for i in range(N)
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same rows in either format; in Parquet in groups, with columns of bytes beside them."""
    place = tmp_path_factory.mktemp("parquet")
    table = pyarrow.Table.from_pylist(ROWS)
    table = table.append_column("image", pyarrow.array([{"bytes": b"\xff\xd8", "path": "x"}] * N))
    table = table.append_column("hash", pyarrow.array([b"\x00\x01"] * N))
    write_table(table, place / "a.parquet", row_group_size=700)
    (place / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return place / "a.parquet", place / "a.jsonl"
