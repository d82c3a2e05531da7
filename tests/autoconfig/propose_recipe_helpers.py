"""Shared by the tests of proposed recipes: sentences, labels, and files of them in the working directory."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

WORDS = "the cat a dog sees bites and loves no bird that sings here"
RNG = random.Random(1)
SENTENCES = [" ".join(RNG.choices(WORDS.split(), k=6)) for _ in range(60)]
LABELS = ["good" if i % 3 else "bad" for i in range(60)]
REVIEWS = [{"id": i, "review": text, "stars": LABELS[i]} for i, text in enumerate(SENTENCES)]
ANSWER = {"role": "assistant", "content": "yes"}
CONVERSATIONS = [{"messages": [{"role": "user", "content": text}, ANSWER]} for text in SENTENCES]


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_table(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows in the format of the name; ".bare" has no header."""
    if name.endswith(".jsonl"):
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), name)
    else:
        separator = "," if ".csv" in name else "\t"
        cells = [*([] if ".bare" in name else [list(rows[0])]), *(row.values() for row in rows)]
        content = "".join(separator.join(map(str, row)) + "\n" for row in cells).encode()
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def write_lines(*names: str, lines: Sequence[str] = SENTENCES) -> list[str]:
    """Write lines to files of these names; those of a target, such as b.txt or train.de, end in a dot."""
    for name in names:
        end = " ." if Path(name).stem == "b" or name.endswith(".de") else ""
        Path(name).write_text("".join(f"{line}{line and end}\n" for line in lines))
    return list(names)
