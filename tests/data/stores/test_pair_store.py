import subprocess
import sys
import textwrap

import pytest
from tests.data.stores.conftest import SOURCES, TARGETS

from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.stores import pair_store


def test_rows_are_the_ids_of_pairs_that_fit(corpus, open_store, tokenizer):
    store, lines = open_store(corpus), [0, 2, 4]
    assert len(store) == 3
    for texts, read, lengths in (
        (SOURCES, store.source_tokens, store.source_lengths),
        (TARGETS, store.target_tokens, store.target_lengths),
    ):
        assert [read(i).tolist() for i in range(3)] == tokenizer.encode([texts[i] for i in lines])
        assert lengths.tolist() == [len(texts[i].encode()) + 1 for i in lines]
    assert store.line_numbers.tolist() == [i + 1 for i in lines]
    report = store.report
    assert (report.total, report.used, report.empty, report.too_long) == (5, 3, 1, 1)
    assert report.examples == {"empty": ["line 2"], "too_long": ["line 4"]}


def test_pairs_without_a_token_are_empty(write_file, open_store, tokenizer, monkeypatch):
    encode = type(tokenizer).encode  # as published tokenizers that remove some characters
    monkeypatch.setattr(
        type(tokenizer), "encode", lambda self, texts: encode(self, [t.replace("§", "") for t in texts])
    )
    corpus = open_corpus([write_file("a.en", "a\n§\nb\nc\n"), write_file("a.de", "A\nB\nC\n§\n")])
    report = open_store(corpus).report
    assert (report.used, report.examples) == (2, {"empty": ["line 2", "line 4"]})


@pytest.mark.acceptance("A8")
def test_overlong_pairs_are_reported_and_skipped(write_file, open_store, monkeypatch):
    monkeypatch.setattr(pair_store, "_CHUNK", 4)  # rows are written in chunks
    sources = ["short"] * 29 + ["123456", "word " * 10_000] + ["short"] * 30
    targets = ["kurz"] * 60 + ["123456"]
    corpus = open_corpus([write_file("a.en", "\n".join(sources)), write_file("a.de", "\n".join(targets))])
    store = open_store(corpus, max_len=6)  # with the end of a sentence
    assert str(store.report) == "a.en + a.de: 58 of 61 pairs; skipped 3 overlong (first: line 30)"
    assert store.source_lengths.tolist() == [6] * 58
    assert store.target_offsets.tolist() == list(range(0, 4 * 58 + 1, 4))
    tables = [write_file("a.tsv", "one\teins\n"), write_file("b.tsv", "two\tzwei\n" + "x" * 80 + "\tdrei\n")]
    assert open_store(open_corpus(tables), max_len=40).report.examples == {"too_long": ["b.tsv line 2"]}
    with pytest.raises(UserError, match=r"no usable pair in .* 61 overlong .*\(max_len is 2 tokens\)"):
        open_store(corpus, max_len=2)
    with pytest.raises(UserError, match="max_len is 1"):
        open_store(corpus, max_len=1)


@pytest.mark.slow
@pytest.mark.acceptance("A8")
def test_huge_line_needs_little_memory(write_file, tmp_path):
    with (tmp_path / "a.en").open("wb") as file:
        file.write(b"short\n" * 100)
        for _ in range(300):
            file.write(b"x" * (1 << 20))
        file.write(b"\n")
    write_file("a.de", "kurz\n" * 101)
    script = textwrap.dedent("""
        import resource, sys
        from polyhead.data.readers.parallel_corpus import open_corpus
        from polyhead.data.stores.pair_store import PairStore
        from polyhead.core.registry import Choice
        from polyhead.tokenizers.train_tokenizer import train_tokenizer
        tokenizer = train_tokenizer(["short kurz"], Choice("byte"), 261)
        status = open("/proc/self/status")
        size = int(next(line for line in status if line.startswith("VmSize")).split()[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20), size + (100 << 20)))
        corpus = open_corpus(["a.en", "a.de"], root=sys.argv[1])
        print(PairStore.open_or_build(corpus, tokenizer, sys.argv[1] + "/cache", max_len=16).report)
    """)
    env = {"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    expected = "a.en + a.de: 100 of 101 pairs; skipped 1 overlong (first: line 101)\n"
    assert result.stdout == expected, result.stderr[-500:]


def test_swapped_columns_are_another_store(write_file, open_store, tokenizer):
    path = write_file("a.tsv", "one\teins\n")
    forward, backward = (open_store(open_corpus([path], source=s, target=1 - s)) for s in (0, 1))
    assert tokenizer.decode([forward.source_tokens(0), backward.source_tokens(0)]) == ["one", "eins"]


def test_unwritable_cache_or_full_disk_is_refused(corpus, open_store, tmp_path, file_limit):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"cannot be written to .*cache: .* with data.cache_dir="):
        open_store(corpus)
    (tmp_path / "cache").unlink()
    with file_limit(130), pytest.raises(UserError, match="cannot be written"):
        open_store(corpus)
    assert list((tmp_path / "cache").iterdir()) == []
