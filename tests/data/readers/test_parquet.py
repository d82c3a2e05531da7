import json
import sys

import pyarrow
import pytest
from pyarrow.parquet import write_table
from tests.data.readers.parquet_helpers import ROWS, N
from tests.data.readers.parquet_helpers import paths as paths

from polyhead.cli import main
from polyhead.cli.line_io import read_lines
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.data.readers.conversations import ConversationReport, open_conversations
from polyhead.data.readers.files import iter_lines, open_lines
from polyhead.data.readers.labeled import LabeledReport, open_labeled
from polyhead.data.readers.parallel_corpus import CorpusReport, open_corpus
from polyhead.data.readers.plain_text import TextReport, open_text


def test_row_is_a_json_line_without_byte_columns(paths):
    assert [json.loads(line or b"") for line in iter_lines(paths[0])] == ROWS
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    with open_lines(paths[0]) as file:
        assert file.read(10_000_000).decode() == lines


@pytest.mark.parametrize("label", ["label", "name"])
def test_labeled_texts_equal_those_of_jsonl(paths, label):
    splits = []
    for is_validation in (False, True):
        options = {"label": label, "validation_fraction": 0.3, "is_validation": is_validation}
        files = [open_labeled([path], text=["text"], **options) for path in paths]
        reports = [LabeledReport("") for _ in paths]
        actual, expected = (list(f.iter_examples(r)) for f, r in zip(files, reports, strict=True))
        assert actual == expected and reports[0] == reports[1] and reports[0].used > N / 5
        splits.append(reports[0])
    assert splits[0].malformed and not splits[1].malformed  # counted once


def test_texts_pairs_and_conversations_equal_those_of_jsonl(paths):
    def read(path):
        report = CorpusReport("")
        corpus = open_corpus([path], source="translation.en", target="translation.de")
        pairs = list(corpus.iter_pairs(report))
        assert (report.used, report.empty) == (N // 2, N - N // 2)
        texts = list(open_text([path], "file", columns=["text"]).read_chunks(TextReport("")))
        conversations = list(open_conversations([path]).read(ConversationReport("")))
        assert min(len(texts), len(conversations)) > N // 2
        return pairs, report, texts, conversations

    assert read(paths[0]) == read(paths[1])


def test_damaged_or_misnamed_file_is_refused(paths, tmp_path):
    content, path = paths[0].read_bytes(), tmp_path / "c.parquet"
    end = len(content) // 3
    for damaged in (content[:end], content[:end] + content[-300:], content[:4] + content[-4:], content[:9]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"^[^\n]*c\.parquet is damaged: [^\n]+$"):
            open_labeled([path], text=["text"], label="label")
    for start, end in ((1000, 3000), (4, 40)):  # in a page, in its header
        path.write_bytes(content[:start] + b"\xff" * (end - start) + content[end:])  # with an intact footer
        with pytest.raises(UserError, match=r"^[^\n]*c\.parquet[^\n]* damaged[^\n]+$"):
            list(open_labeled([path], text=["text"], label="label").iter_examples(LabeledReport("")))
    (tmp_path / "c.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"c\.bin is Parquet, .* rename it to c\.bin\.parquet"):
        open_text([tmp_path / "c.bin"], "file")
    write_table(pyarrow.Table.from_pylist([], schema=pyarrow.schema([("text", "string")])), path)
    with pytest.raises(UserError, match=r"c\.parquet is empty"):
        open_text([path], "file", columns=["text"])
    with pytest.raises(UserError, match=r"a\.parquet is a table; expected lines of text"):
        list(read_lines(str(paths[0])))


def test_nanoseconds_in_other_columns_are_text(tmp_path):
    times = pyarrow.array([1, 2], pyarrow.timestamp("ns"))
    columns = {
        "text": ["a", "b"],
        "time": times,
        "times": pyarrow.array([[1], [2]], pyarrow.list_(times.type)),
    }
    write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    rows = [json.loads(line or b"") for line in iter_lines(tmp_path / "t.parquet")]
    assert rows[1] == {"text": "b", "time": "1970-01-01 00:00:00.000000002", "times": None}


def test_ambiguous_column_is_refused(tmp_path):
    columns = [pyarrow.array([text]) for text in "abc"]
    write_table(pyarrow.Table.from_arrays(columns, ["text", "other", "text"]), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet has 2 columns named 'text': the name is ambiguous"):
        open_text([tmp_path / "c.parquet"], "file", columns=["text"])
    (chunk,) = open_text([tmp_path / "c.parquet"], "file", columns=["other"]).read_chunks(TextReport(""))
    assert chunk.text == "b"


def test_missing_pyarrow_names_the_install_command(paths, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "r.yaml").write_text(
        f"task: language-model\ndata: {{train: {paths[0]}, valid_fraction: 0.1}}\ntrain: {{steps: 1}}\n"
        f"out: {tmp_path / 'run'}\n"
    )
    assert main(["train", str(tmp_path / "r.yaml")]) == 2
    assert f"this needs pyarrow: {install_command('parquet')}" in capsys.readouterr().err
