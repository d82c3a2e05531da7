from tests.data.plain_text_helpers import PARAGRAPHS, PLAY, build_store

from polyhead.data.readers import files
from polyhead.data.readers.plain_text import open_text
from polyhead.data.stores.build_cache import cache_dir
from polyhead.data.stores.token_store import TokenStore


def test_documents_are_separated_by_the_end_token(write_file, tokenizer, tmp_path):
    path, end = write_file("play", PLAY), tokenizer.eos_id
    store = build_store(tmp_path, tokenizer, [path], "blank")
    expected, starts = [end], []
    for ids in tokenizer.encode(PARAGRAPHS):
        starts.append(len(expected) - 1)
        expected += [*ids, end]
    assert store.ids.tolist() == expected
    assert store.document_starts.tolist() == starts
    reopened = build_store(tmp_path, tokenizer, [path], "blank")
    assert reopened.directory == store.directory and reopened.report == store.report
    assert build_store(tmp_path, tokenizer, [path], "line").directory != store.directory
    single = build_store(tmp_path, tokenizer, [path], "file")
    assert single.ids.tolist() == tokenizer.encode([PLAY])[0]
    assert single.document_starts.tolist() == [0]


def test_format_of_a_file_determines_the_store(write_file, tokenizer, tmp_path):
    path, cache, texts = write_file("t.txt", '["a"]\n["b"]\n'), tmp_path / "cache", {}
    for format, columns in (("tsv", [0]), ("jsonl", [0]), ("auto", [])):
        text = open_text([path], "line", columns=columns, format=format)
        store = TokenStore.open_or_build(text, tokenizer, cache)
        texts[format] = tokenizer.decode([store.ids[store.ids != tokenizer.eos_id].tolist()])[0]
    assert texts == {"tsv": '["a"]["b"]', "jsonl": "ab", "auto": '["a"]["b"]'}
    # the settings of plain text are those of older versions, so that their stores are reused
    settings = [2, [files.fingerprint(path)], tokenizer.sha256, "line", (0.0, 1.0)]
    assert store.directory == cache_dir(cache, "text", settings) and len(list(cache.iterdir())) == 3
