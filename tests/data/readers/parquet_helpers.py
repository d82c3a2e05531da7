import json

import pyarrow
import pytest
from pyarrow.parquet import write_table

from polyhead.data.readers import parquet

N = 2 * parquet._BATCH_ROWS + 77
TEXTS = ["", "a dog", 'two\nlines "quoted"\t', "犬 \u2028 🐕", " b" * 50]
ROWS = [
    {
        "label": i % 3,
        "name": "ab"[i % 2],
        "text": None if i % 97 == 5 else f"{TEXTS[i % len(TEXTS)] * (100 if i < 9 else 1)}{i}",
        "translation": {"de": f"Hund {i}", "en": TEXTS[i % 2]},
        "messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": TEXTS[i % 5]}],
        "score": i / 7,
    }
    for i in range(N)
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parquet")
    table = pyarrow.Table.from_pylist(ROWS)
    table = table.append_column("image", pyarrow.array([{"bytes": b"\xff\xd8", "path": "x"}] * N))
    table = table.append_column("hash", pyarrow.array([b"\x00\x01"] * N))
    write_table(table, directory / "a.parquet", row_group_size=700)
    (directory / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return directory / "a.parquet", directory / "a.jsonl"
