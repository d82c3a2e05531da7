"""Tests of data/stores/token_store.py."""

from collections.abc import Callable
from pathlib import Path

from tests.data.plain_text_helpers import build

from polyhead.data.readers import files
from polyhead.data.readers.plain_text import open_text
from polyhead.data.stores.build_cache import cache_dir
from polyhead.data.stores.token_store import TokenStore
from polyhead.tokenizers.tokenizer import Tokenizer

Write = Callable[[str, bytes | str], Path]

PLAY = "ROMEO:\nBut soft!\n\n\nJULIET:\nAy me.\n \nROMEO:\nShe speaks."


def test_each_document_begins_with_the_mark_that_ends_the_one_before(write, tokenizer, tmp_path) -> None:
    store = build(tmp_path, tokenizer, [write("play", PLAY)], "blank")
    mark = tokenizer.eos_id
    wanted = [mark]
    begins = []
    for document in ["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."]:
        begins.append(len(wanted) - 1)
        wanted += [*tokenizer.encode([document])[0], mark]
    assert store.ids.tolist() == wanted
    assert store.document_starts.tolist() == begins
    again = build(tmp_path, tokenizer, [tmp_path / "play"], "blank")
    assert again.directory == store.directory and again.report == store.report
    assert build(tmp_path, tokenizer, [tmp_path / "play"], "line").directory != store.directory


def test_one_file_that_is_one_document_has_no_mark(write, tokenizer, tmp_path) -> None:
    store = build(tmp_path, tokenizer, [write("play", PLAY)], "file")
    assert store.ids.tolist() == tokenizer.encode([PLAY])[0]
    assert store.document_starts.tolist() == [0]


def test_a_file_that_is_read_as_another_table_is_another_store(
    write: Write, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path, cache = write("t.txt", '["a"]\n["b"]\n'), tmp_path / "cache"
    found = {}
    for format, columns in (("tsv", [0]), ("jsonl", [0]), ("auto", [])):
        text = open_text([path], "line", columns=columns, format=format)
        store = TokenStore.open_or_build(text, tokenizer, cache)
        found[format] = tokenizer.decode([store.ids[store.ids != tokenizer.eos_id].tolist()])[0]
    assert found == {"tsv": '["a"]["b"]', "jsonl": "ab", "auto": '["a"]["b"]'}
    # what older versions have made of plain text is still found
    settings = [2, [files.fingerprint(path)], tokenizer.sha256, "line", (0.0, 1.0)]
    assert store.directory == cache_dir(cache, "text", settings) and len(list(cache.iterdir())) == 3
