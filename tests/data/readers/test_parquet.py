"""Parquet files are read as the same rows in JSONL are, by every reader of tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import write_table
from tests.data.readers.parquet_helpers import ROWS
from tests.data.readers.parquet_helpers import both as both

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.data.readers import parquet
from polyhead.data.readers.conversations import ConversationReport, open_conversations
from polyhead.data.readers.files import iter_lines, open_lines
from polyhead.data.readers.labeled import LabeledReport, open_labeled
from polyhead.data.readers.parallel_corpus import CorpusReport, open_corpus
from polyhead.data.readers.plain_text import TextReport, open_text

N = 2 * parquet._BATCH_ROWS + 77


def test_a_row_is_a_line_of_its_columns_without_those_of_bytes(both: tuple[Path, Path]) -> None:
    assert [json.loads(line or b"") for line in iter_lines(both[0])] == ROWS
    with open_lines(both[0]) as file:
        assert file.read(10_000_000).decode() == "".join(
            json.dumps(r, ensure_ascii=False) + "\n" for r in ROWS
        )


def test_labelled_texts(both: tuple[Path, Path]) -> None:
    for label in ("label", "name"):
        found = []
        for path in both:
            parts = []
            for is_validation in (False, True):
                report = LabeledReport("")
                part = open_labeled(
                    [path], text=["text"], label=label, validation_fraction=0.3, is_validation=is_validation
                )
                parts.append((list(part.iter_examples(report)), report))
            found.append(parts)
        assert found[0] == found[1]
        (_, trained), (_, held_out) = found[0]
        assert min(trained.used, held_out.used) > 500
        assert trained.malformed and not held_out.malformed  # counted once


def test_pairs(both: tuple[Path, Path]) -> None:
    found = []
    for path in both:
        report = CorpusReport("")
        corpus = open_corpus([path], source="translation.en", target="translation.de")
        found.append((list(corpus.iter_pairs(report)), report))
    assert found[0] == found[1]
    assert found[0][1].used == N // 2 and found[0][1].empty == N - N // 2


def test_texts_and_conversations(both: tuple[Path, Path]) -> None:
    texts = [list(open_text([path], "file", columns=["text"]).read_chunks(TextReport(""))) for path in both]
    assert texts[0] == texts[1] and len(texts[0]) > N // 2
    talks = [list(open_conversations([path]).read(ConversationReport(""))) for path in both]
    assert talks[0] == talks[1] and len(talks[0]) > N // 2


def test_what_is_damaged_or_named_otherwise_is_told_in_a_line(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    content = both[0].read_bytes()
    whole, end = tmp_path / "c.parquet", len(content) // 3
    for bad in (content[:end], content[:end] + content[-300:], content[:4] + content[-4:], content[:9]):
        whole.write_bytes(bad)
        with pytest.raises(UserError, match=r"^[^\n]*c\.parquet is damaged: [^\n]+$"):
            open_labeled([whole], text=["text"], label="label")
    whole.write_bytes(content[:1000] + bytes(20_000) + content[21_000:])  # the table of contents is whole
    with pytest.raises(UserError, match=r"^[^\n]*c\.parquet[^\n]* damaged[^\n]+$"):
        list(open_labeled([whole], text=["text"], label="label").iter_examples(LabeledReport("")))
    (tmp_path / "c.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"c\.bin is Parquet, .* rename it to c\.bin\.parquet"):
        open_text([tmp_path / "c.bin"], "file")
    write_table(pyarrow.Table.from_pylist(ROWS[:0], schema=pyarrow.schema([("text", "string")])), whole)
    with pytest.raises(UserError, match=r"c\.parquet is empty"):
        open_text([whole], "file", columns=["text"])


def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    columns = [pyarrow.array([text]) for text in "abc"]
    write_table(pyarrow.Table.from_arrays(columns, ["text", "other", "text"]), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet has 2 columns named 'text': the name is ambiguous"):
        open_text([tmp_path / "c.parquet"], "file", columns=["text"])
    (piece,) = open_text([tmp_path / "c.parquet"], "file", columns=["other"]).read_chunks(TextReport(""))
    assert piece.text == "b"


def test_a_table_is_no_text_to_be_said_line_by_line(
    both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyhead.cli.line_io import read_lines

    with pytest.raises(UserError, match=r"a\.parquet is a table; expected lines of text"):
        list(read_lines(str(both[0])))


def test_without_its_library_it_says_what_to_install(
    both: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "r.yaml").write_text(
        f"task: language-model\ndata: {{train: {both[0]}, valid_fraction: 0.1}}\ntrain: {{steps: 1}}\nout: "
        f"{tmp_path / 'run'}\n"
    )
    assert main(["train", str(tmp_path / "r.yaml")]) == 2
    assert f"this needs pyarrow: {install_command('parquet')}" in capsys.readouterr().err
