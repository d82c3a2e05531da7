"""Pairs are read whole or counted as skipped; what cannot be mended is told in one line."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import (
    CorpusFormat,
    CorpusReport,
    ParallelFiles,
    open_corpus,
    read_corpus_texts,
    read_pairs,
)

Write = Callable[[str, bytes | str], Path]
# What is no end of a line here, though str.splitlines thinks so.
INSIDE = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def parallel(write: Write, source: bytes | str, target: bytes | str) -> ParallelFiles:
    return open_corpus([write("a.en", source), write("a.de", target)])


def read(corpus: ParallelFiles) -> tuple[list[str], list[str], CorpusReport]:
    sources, targets, report = read_pairs(corpus)
    assert report.total == report.used + report.empty + report.too_long + report.malformed
    assert report.used == len(sources) == len(targets)
    assert "\n" not in str(report)
    return sources, targets, report


@pytest.mark.acceptance("A9")
@pytest.mark.parametrize("inside", INSIDE)
def test_only_a_line_feed_ends_a_line(inside: str, write: Write) -> None:
    sources = [f"one{inside}two", "three", f"fo{inside}ur"]
    corpus = parallel(write, "\n".join(sources) + "\n", "eins\nzwei\ndrei\n")
    assert read(corpus)[:2] == (sources, ["eins", "zwei", "drei"])


@pytest.mark.acceptance("A9")
def test_bom_and_crlf_are_dropped_and_the_last_line_feed_may_lack(write: Write) -> None:
    corpus = parallel(write, b"\xef\xbb\xbfone\r\ntwo\r\nthree", "eins\nzwei\ndrei\n")
    assert read(corpus)[:2] == (["one", "two", "three"], ["eins", "zwei", "drei"])


@pytest.mark.acceptance("A9")
@pytest.mark.parametrize(("source", "target", "said"), [
    ("1\n2\n3\n", "a\nb\n", "a.en has 3 lines and a.de has 2: from line 3 on, only a.en has lines ('3')"),
    ("1\n2\n", "a\nb\nc\nd\n", "a.en has 2 lines and a.de has 4: from line 3 on, only a.de has lines ('c')"),
    ("1\n2\n", "a\nb\n\n\n", "a.en has 2 lines and a.de has 4: from line 3 on, only a.de has lines ('')"),
])  # fmt: skip
def test_files_of_unequal_length_are_refused_by_the_first_line_too_many(
    source: str, target: str, said: str, write: Write
) -> None:
    with pytest.raises(UserError) as caught:
        read(parallel(write, source, target))
    assert str(caught.value) == said


@pytest.mark.acceptance("A10")
def test_a_blank_line_on_one_side_takes_the_pair_away_and_is_counted(write: Write) -> None:
    corpus = parallel(write, "1\n\n3\n4\n \t\n6\n", "a\nb\nc\n\u3000\n\u200b\nf\n")
    sources, targets, report = read(corpus)
    assert (sources, targets) == (["1", "3", "6"], ["a", "c", "f"])
    assert (report.total, report.used, report.empty) == (6, 3, 3)
    assert report.examples == {"empty": ["line 2", "line 4", "line 5"]}
    assert str(report) == "a.en + a.de: 3 of 6 pairs; skipped 3 blank (first: line 2)"


@pytest.mark.parametrize("line", ["\xad", "\u202e\u200f", "\u3164", "\ufe0f", "\x07 "])
def test_a_line_without_visible_characters_is_blank_in_every_format(write: Write, line: str) -> None:
    rows = [json.dumps({"s": "1", "t": "a"}), line, json.dumps({"s": line, "t": "b"})]
    for corpus in (
        parallel(write, f"1\n{line}\n", "a\nb\n"),
        open_corpus([write("a.tsv", f"1\ta\n{line}\n{line}\tb\n")]),
        open_corpus([write("a.jsonl", "\n".join(rows) + "\n")], source="s", target="t"),
    ):
        sources, _, report = read(corpus)
        assert (sources, report.used + report.empty) == (["1"], report.total)
        assert report.empty


def test_broken_lines_are_counted_as_pairs_with_their_lines(write: Write) -> None:
    corpus = parallel(write, b"1\nna\xefve\n3\n4\n5\n", b"a\nb\nc\nd\x00d\ne\n")
    sources, targets, report = read(corpus)
    assert (sources, targets) == (["1", "3", "5"], ["a", "c", "e"])
    assert report.examples["malformed"] == ["line 2", "line 4"]


def test_a_tab_or_a_no_break_space_stays_in_a_parallel_line(write: Write) -> None:
    corpus = parallel(write, "one\ttwo \n", "eins\u00a0zwei  \n")
    assert read(corpus)[:2] == (["one\ttwo "], ["eins\u00a0zwei  "])


def test_a_mark_of_utf8_within_joined_files_is_no_part_of_a_line(write: Write) -> None:
    line = '\ufeff{"s": "one", "t": "eins"}\n'
    assert read(open_corpus([write("a.jsonl", line * 2)], source="s", target="t"))[0] == ["one"] * 2


def test_several_files_follow_each_other_and_are_named(write: Write) -> None:
    corpus = open_corpus(
        [write("a.tsv", "1\ta\n2\tb\n"), write("b.tsv.gz", gzip.compress(b"3\tc\nbad\n4\td\n"))]
    )
    sources, _, report = read(corpus)
    assert sources == ["1", "2", "3", "4"]
    assert report.examples["malformed"] == ["b.tsv.gz line 2"]


def test_a_limit_stops_reading(write: Write) -> None:
    corpus = parallel(write, "1\n2\n3\n", "a\nb\nc\n")
    assert read_pairs(corpus, limit=2)[0] == ["1", "2"]
    assert len(read_pairs(corpus, limit=10**30)[0]) == len(read_pairs(corpus)[0])


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_share_is_held_out_by_the_sources_and_no_source_is_on_both_sides(
    share: float, write: Write
) -> None:
    rows = [(f"source {i % 700}", f"target {i}") for i in range(1000)]  # 300 sources have two translations
    text = "".join(f"{a}\t{b}\n" for a, b in rows).replace("source 7\t", "source 7", 1)
    path = write("pairs.tsv", text)
    parts = [
        read(open_corpus([path], validation_fraction=share, is_validation=held)) for held in (False, True)
    ]
    kept, held = (list(zip(*part[:2], strict=True)) for part in parts)
    whole = list(zip(*read(open_corpus([path]))[:2], strict=True))
    assert sorted(kept + held) == sorted(whole)
    assert [pair for pair in whole if pair in set(held)] == held  # in the order of the file
    assert not {a for a, _ in kept} & {a for a, _ in held}
    assert len(held) == pytest.approx(1000 * share, abs=3 * (1000 * share * 1.5) ** 0.5)
    assert [part[2].malformed for part in parts] == [1, 0]


@pytest.mark.parametrize(("share", "held", "what"), [(1e-6, True, "none"), (0.999999, False, "all")])
def test_a_share_that_leaves_one_side_empty_is_told(
    share: float, held: bool, what: str, write: Write
) -> None:
    corpus = open_corpus([write("two.tsv", "1\ta\n2\tb\n")], validation_fraction=share, is_validation=held)
    with pytest.raises(
        UserError, match=rf"data.valid_fraction is .*: this selects {what} of the 2 pairs in two.tsv; set"
    ):
        read_pairs(corpus)


def test_both_sides_teach_the_tokenizer(write: Write) -> None:
    assert list(read_corpus_texts(parallel(write, "1\n\n3\n", "a\nb\nc\n"))) == ["1", "a", "3", "c"]


ENOUGH = "".join(f"{n}\n" for n in range(20))
Expected = str | dict[str, int]  # words of the error, or the counts of a report
Files = dict[str, bytes | str]


def bad(line: bytes | str, times: int = 1) -> Files:
    """Twenty good lines, and a bad one in the source."""
    line = line if isinstance(line, bytes) else line.encode()
    return {"a.en": ENOUGH.encode() + (line + b"\n") * times, "a.de": ENOUGH + "x\n" * times}


PATHOLOGIES: dict[str, tuple[Files, Expected]] = {
    "empty source": ({"a.en": "", "a.de": "x\n"}, "a.en is empty"),
    "empty target": ({"a.en": "x\n", "a.de": ""}, "a.de is empty"),
    "both empty": ({"a.en": "", "a.de": ""}, "is empty"),
    "only a BOM": ({"a.en": b"\xef\xbb\xbf", "a.de": "x\n"}, "no usable pair .* 1 blank"),
    "only line feeds": ({"a.en": "\n\n\n", "a.de": "\n\n\n"}, "no usable pair .* 3 blank"),
    "all targets blank": ({"a.en": "1\n2\n", "a.de": " \n\n"}, "no usable pair .* 2 blank"),
    "missing source": ({"a.enn": "1\n", "a.de": "1\n"}, "no file 'a.en' .* did you mean 'a.enn'"),
    "missing target": ({"a.en": "1\n"}, "no file 'a.de'"),
    "one line more": ({"a.en": "1\n2\n", "a.de": "1\n"}, "from line 2 on, only a.en"),
    "one line less": ({"a.en": "1\n", "a.de": "1\n2\n"}, "from line 2 on, only a.de"),
    "line feed too many at the end": ({"a.en": "1\n\n", "a.de": "1\n"}, {"used": 1}),
    "two line feeds too many at the end": ({"a.en": "1\n\n\n", "a.de": "1\n"}, "from line 2 on, only a.en"),
    "random binary": ({"a.en": bytes(range(256)) * 400, "a.de": "1\n"}, "does not look like UTF-8 text"),
    "zeros": ({"a.en": bytes(100_000), "a.de": "1\n"}, "does not look like UTF-8 text"),
    "zip archive": ({"a.en": b"PK\x03\x04\x14\x00\x00\x00\x08\x00" * 9, "a.de": "1\n"}, "with zip.*unzip"),
    "workbook": (
        {"a.en": b"PK\x03\x04" + b"\n" * 26 + b"[Content_Types].xml", "a.de": "1\n"},
        "a.en is an office document, expected text: export it as CSV in UTF-8",
    ),
    "old workbook": ({"a.en": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.de": "1\n"}, "a.en is an office "
        "document"),
    "bzip2": ({"a.en": bz2.compress(ENOUGH.encode()), "a.de": ENOUGH}, "bunzip2"),
    "xz": ({"a.en": lzma.compress(ENOUGH.encode()), "a.de": ENOUGH}, "unxz"),
    "Parquet": ({"a.en": b"PAR1\x15\x04\x15\x80" * 9, "a.de": "1\n"}, "is damaged: Parquet"),
    "UTF-16": ({"a.en": "one\ntwo\n".encode("utf-16"), "a.de": "1\n2\n"}, "is UTF-16.*iconv"),
    "UTF-16 without a mark": ({"a.en": "one\ntwo\n".encode("utf-16-le"), "a.de": "1\n2\n"},
        "does not look like UTF-8"),
    "Latin-1 throughout": ({"a.en": "ä\nö\nü\n".encode("latin-1"), "a.de": "1\n2\n3\n"}, "iconv -f LATIN1"),
    "GBK throughout": ({"a.en": "你好\n世界\n".encode("gbk"), "a.de": "1\n2\n"}, "does not look like UTF-8"),
    "old Mac line ends": ({"a.en": b"1\r2\r3\r", "a.de": b"1\n2\n3\n"}, r"bare \\r"),
    "gzip cut short": ({"a.en": gzip.compress(ENOUGH.encode() * 99)[:-9], "a.de": ENOUGH * 99}, "damaged"),
    "gzip with a flipped bit": ({"a.en": gzip.compress(ENOUGH.encode())[:-6] + b"xxxxxx", "a.de": ENOUGH},
        "damaged"),
    "gzip of nothing": ({"a.en": gzip.compress(b""), "a.de": "1\n"}, "is empty"),
    "gzip twice": ({"a.en": gzip.compress(gzip.compress(ENOUGH.encode())), "a.de": ENOUGH},
        "compressed with gzip; decompress it"),
    "mostly broken further down": (
        {"a.en": b"good line\n" * 10_000 + b"\xff\n" * 20_000, "a.de": "x\n" * 30_000},
            "most lines are invalid"),
    "some Latin-1": (bad("é".encode("latin-1")), {"used": 20, "malformed": 1}),
    "NUL in a line": (bad("a\x00b"), {"used": 20, "malformed": 1}),
    "surrogates in UTF-8": (bad(b"\xed\xa0\x80"), {"used": 20, "malformed": 1}),
    "overlong UTF-8": (bad(b"\xc0\xaf"), {"used": 20, "malformed": 1}),
    "cut inside a character": (bad("你".encode()[:2]), {"used": 20, "malformed": 1}),
    "BOM": ({"a.en": b"\xef\xbb\xbf1\n2\n", "a.de": b"\xef\xbb\xbfa\nb\n"}, {"used": 2}),
    "CRLF": ({"a.en": b"1\r\n2\r\n", "a.de": b"a\nb\n"}, {"used": 2}),
    "CRLF on blank lines": ({"a.en": b"1\r\n\r\n", "a.de": b"a\nb\n"}, {"used": 1, "empty": 1}),
    "U+2028": (bad("a\u2028b"), {"used": 21}),
    "U+0085": (bad("a\x85b"), {"used": 21}),
    "file separator": (bad("a\x1cb\x0bc"), {"used": 21}),
    "only combining marks": (bad("\u0301" * 1000), {"used": 21}),
    "right-to-left override": (bad("\u202e" * 100), {"used": 20, "empty": 1}),
    "zero-width only": (bad("\u200b\ufeff"), {"used": 20, "empty": 1}),
    "ideographic spaces only": (bad("\u3000\u3000"), {"used": 20, "empty": 1}),
    "special tokens": (bad("</s><pad><|endoftext|>"), {"used": 21}),
    "line of 10 MB": (bad("word " * 2_000_000), {"used": 20, "too_long": 1}),
    "line of 10 MB at the end of the sample": ({"a.en": b"x" * 10_000_000, "a.de": b"1"},
        "no usable pair .* 1 overlong"),
    "a folder": ({"a.en/x": "1\n", "a.de": "1\n"}, "a.en is a directory"),
}  # fmt: skip


@pytest.mark.acceptance("A9", "A10", "R5")
@pytest.mark.parametrize("name", PATHOLOGIES)
def test_a_pathological_corpus_gives_a_clear_error_or_a_counted_skip(name: str, tmp_path: Path) -> None:
    files, expected = PATHOLOGIES[name]
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as caught:
            read(open_corpus(["a.en", "a.de"], root=tmp_path))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 600
    else:
        report = read(open_corpus(["a.en", "a.de"], root=tmp_path))[2]
        zeros = dict.fromkeys(("used", "empty", "too_long", "malformed"), 0)
        assert {kind: getattr(report, kind) for kind in zeros} == zeros | expected


def test_there_are_forty_pathologies() -> None:
    assert len(PATHOLOGIES) >= 40


@pytest.mark.parametrize(("files", "options", "said"), [
    ([], {}, "no files"),
    (["a.txt"], {}, "cannot detect the format of a.txt"),
    (["a.csv"], {}, "a.csv is empty"),
    (["a.txt", "a.tsv", "a.jsonl"], {}, "these differ: a.txt plain text, a.tsv TSV, a.jsonl JSONL; rename "
                                        "them"),
    (["a.txt", "a.parquet"], {}, "these differ: a.txt plain text, a.parquet Parquet; rename them"),
    (["a.tsv", "a.jsonl"], {}, "these differ: a.tsv TSV, a.jsonl JSONL"),
    (["a.txt"], {"format": "parallel"}, "expects a source and a target file, got 1"),
    (["a.txt"], {"format": "csv"}, "unknown format 'csv'"),
    (["a.tsv"], {"target": 7}, "a.tsv has 2 columns: no column 7"),
    (["a.tsv"], {"source": "eng", "target": 1}, "unknown column of a.tsv 'eng'.* did you mean 'en'.*; "
                                                "without a header, columns are numbers: 0 is"),
    (["twice.tsv"], {"source": "en", "target": "de"}, "twice.tsv has 2 columns named 'de': the name is "
        "ambiguous; rename one, or use its number"),
    (["a.jsonl"], {}, "a.jsonl has the keys de, en: set source to one of them, got number 0"),
    (["a.jsonl"], {"source": "en", "target": "dee"}, "unknown key of a.jsonl 'dee'.* did you mean 'de'"),
    (["null.jsonl"], {"source": "en", "target": "de"}, "null.jsonl: the key 'en' is null in each of its "
        "first 2 lines"),
    (["deep.jsonl"], {"source": "t.en", "target": "t.dee"}, "'t.dee'; did you mean 't.de'[?] Known: t.de, "
        "t.en"),
    (["deep.jsonl"], {}, "deep.jsonl has the keys t.de, t.en: set source to one of them, got number 0"),
    (["deep.jsonl"], {"source": "t", "target": "t.de"}, "the key 't' holds an object: set source to a key "
        "inside it, t.en, t.de"),
    (["one.json"], {"source": "en", "target": "de"}, "one.json is one JSON list; .*jq -c '.\\[\\]' one.json "
        "> one.jsonl"),
    (["list.jsonl"], {"source": 0, "target": 2}, "list of 2 per line: target must be a number below that"),
    (["a.txt"], {"format": "jsonl"}, "none of its first lines is a JSON object"),
    (["a.tsv"], {"root": "nowhere"}, ": no directory"),
])  # fmt: skip
def test_a_mistake_in_the_names_is_found_before_any_work(
    files: list[str], options: dict[str, str | int], said: str, write: Write, tmp_path: Path
) -> None:
    write("a.txt", "words\n")
    write("a.parquet", "words\n")
    write("a.csv", "en,de\n")
    write("a.tsv", "en\tde\n")
    write("twice.tsv", "en\tde\tde\none\teins\tzwei\n")
    write("a.jsonl", '{"en": "one", "de": "eins"}\n')
    write("list.jsonl", '["one", "eins"]\n')
    write("null.jsonl", '{"en": null, "de": "eins"}\n' * 2)
    write("deep.jsonl", '{"t": {"en": "one", "de": "eins"}}\n')
    write("one.json", '[{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]')
    root = tmp_path / str(options.get("root", "."))
    format: CorpusFormat = options.get("format", "auto")  # type: ignore[assignment]
    with pytest.raises(UserError, match=said):
        open_corpus(
            files, root=root, format=format, source=options.get("source", 0), target=options.get("target", 1)
        )


def test_a_blank_line_at_the_end_of_one_file_is_no_difference(write: Write, tmp_path: Path) -> None:
    write("a.en", "one\ntwo\n")
    for ending, is_equal in (("\n", True), (" \n", True), ("\n\n", False), ("three\n", False)):
        write("a.de", "eins\nzwei\n" + ending)
        for files in (["a.en", "a.de"], ["a.de", "a.en"]):
            corpus = open_corpus(files, root=tmp_path)
            if is_equal:
                assert read_pairs(corpus)[2].total == 2
            else:
                with pytest.raises(UserError, match=r"from line 3 on, only a\.de has lines"):
                    read_pairs(corpus)


def test_marks_of_joined_files_are_removed_and_counted(write: Write, tmp_path: Path) -> None:
    write("a.en", b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nthree\n")
    write("a.de", b"eins\n\xef\xbb\xbfzwei\n\xef\xbb\xbfdrei\n")
    sources, targets, report = read_pairs(open_corpus(["a.en", "a.de"], root=tmp_path))
    assert (sources, targets) == (["one", "two", "three"], ["eins", "zwei", "drei"])
    assert (report.total, report.used, report.bom) == (3, 3, 2)
    counts = []
    write("a.en", b"".join(b"\xef\xbb\xbf%d\n" % i for i in range(3)) + b"more\n" * 9)
    write("a.de", b"eins\n" * 12)
    for is_validation in (False, True):
        half = open_corpus(
            ["a.en", "a.de"], root=tmp_path, validation_fraction=0.5, is_validation=is_validation
        )
        counts.append(read_pairs(half)[2].bom)
    assert counts == [2, 0]  # once
