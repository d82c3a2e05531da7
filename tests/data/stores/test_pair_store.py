"""A store holds what the tokenizer gives, is made once, and is made again when anything about it changed."""

import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import ParallelFiles, open_corpus
from polyhead.data.stores import pair_store as module
from polyhead.data.stores.pair_store import PairStore
from polyhead.tokenizers.tokenizer import Tokenizer

Write = Callable[[str, bytes | str], Path]
SOURCES = ["one", "", "three 你好", "x" * 40, "five"]
TARGETS = ["eins", "zwei", "drei", "vier", "fünf"]


@pytest.fixture
def corpus(write: Write) -> ParallelFiles:
    return open_corpus([write("a.en", "\n".join(SOURCES) + "\n"), write("a.de", "\n".join(TARGETS) + "\n")])


def test_rows_are_the_ids_of_the_pairs_that_fit(
    corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    kept = [0, 2, 4]
    assert len(store) == 3
    assert [store.source_tokens(i).tolist() for i in range(3)] == tokenizer.encode([SOURCES[i] for i in kept])
    assert [store.target_tokens(i).tolist() for i in range(3)] == tokenizer.encode([TARGETS[i] for i in kept])
    assert store.source_lengths.tolist() == [len(SOURCES[i].encode()) + 1 for i in kept]
    assert store.target_lengths.tolist() == [len(TARGETS[i].encode()) + 1 for i in kept]
    assert store.line_numbers.tolist() == [i + 1 for i in kept]
    report = store.report
    assert (report.total, report.used, report.empty, report.too_long) == (5, 3, 1, 1)
    assert report.examples == {"empty": ["line 2"], "too_long": ["line 4"]}


@pytest.mark.acceptance("A8")
def test_the_limit_counts_the_end_and_either_side(write: Write, tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = open_corpus([write("a.en", "aaaa\naaaaa\na\n"), write("a.de", "b\nb\nbbbbb\n")])
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=5)
    assert (len(store), store.report.too_long) == (1, 2)
    assert store.source_lengths.max() == 5


@pytest.mark.acceptance("A8")
def test_a_line_of_fifty_thousand_tokens_is_reported_and_left_out(
    write: Write, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    sources = ["short"] * 30 + ["word " * 10_000] + ["short"] * 30
    corpus = open_corpus([write("a.en", "\n".join(sources)), write("a.de", "\n".join(["kurz"] * 61))])
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=256)
    assert str(store.report) == "a.en + a.de: 60 of 61 pairs; skipped 1 overlong (first: line 31)"
    assert int(store.source_lengths.max()) == 6


@pytest.mark.acceptance("A8")
def test_a_huge_line_needs_little_memory(write: Write, tmp_path: Path) -> None:
    with (tmp_path / "a.en").open("wb") as file:
        file.write(b"short\n" * 100)
        for _ in range(300):
            file.write(b"x" * (1 << 20))
        file.write(b"\n")
    write("a.de", "kurz\n" * 101)
    script = textwrap.dedent("""
        import resource, sys
        from polyhead.data.readers.parallel_corpus import open_corpus
        from polyhead.data.stores.pair_store import PairStore
        from polyhead.core.registry import Choice
        from polyhead.tokenizers.train_tokenizer import train_tokenizer
        tokenizer = train_tokenizer(["short kurz"], Choice("byte"), 261)
        size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20), size + (100 << 20)))
        corpus = open_corpus(["a.en", "a.de"], root=sys.argv[1])
        print(PairStore.open_or_build(corpus, tokenizer, sys.argv[1] + "/cache", max_len=16).report)
    """)  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout == "a.en + a.de: 100 of 101 pairs; skipped 1 overlong (first: line 101)\n", (
        done.stderr[-500:]
    )


def test_the_sides_of_a_table_make_different_stores(
    write: Write, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = write("a.tsv", "one\teins\n")
    there, back = (
        PairStore.open_or_build(
            open_corpus([path], source=s, target=1 - s), tokenizer, tmp_path / "cache", max_len=20
        )
        for s in (0, 1)
    )
    assert tokenizer.decode([there.source_tokens(0), back.source_tokens(0)]) == ["one", "eins"]


def test_nothing_that_fits_is_an_error_that_says_why(
    corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(
        UserError, match=r"no usable pair in .* 4 overlong \(first: line 1\) \(max_len is 2 tokens\)"
    ):
        PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=2)
    with pytest.raises(UserError, match="max_len is 1"):
        PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=1)


def test_a_place_that_cannot_be_written_is_told(
    corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(
        UserError, match=r"cannot be written to .*cache: .*choose another directory with data.cache_dir="
    ):
        PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)


def test_a_full_disk_is_told(corpus: ParallelFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (130, hard))
    try:
        with pytest.raises(UserError, match="cannot be written"):
            PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "cache").iterdir()) == []


def test_chunks_leave_no_seam(
    write: Write, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 4)
    corpus = open_corpus([write("a.en", "x\n" * 10), write("a.de", "yy\n" * 10)])
    store = PairStore.open_or_build(corpus, tokenizer, tmp_path / "cache", max_len=20)
    assert store.target_offsets.tolist() == list(range(0, 22, 2))


def test_of_several_files_the_one_is_named_where_a_pair_does_not_fit(
    write: Write, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    files = [write("a.tsv", "one\teins\n"), write("b.tsv", "two\tzwei\n" + "x" * 80 + "\tdrei\n")]
    report = PairStore.open_or_build(open_corpus(files), tokenizer, tmp_path / "cache", max_len=40).report
    assert report.examples == {"too_long": ["b.tsv line 2"]}
