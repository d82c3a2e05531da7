import bz2
import gzip
import json
import lzma
import re

import pytest
from tests.data.readers.corpus_helpers import open_parallel, read_checked

from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import open_corpus, read_corpus_texts, read_pairs

# line ends for str.splitlines, but not here
SEPARATORS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.acceptance("A9")
@pytest.mark.parametrize("separator", SEPARATORS)
def test_only_a_line_feed_ends_a_line(separator, write_file):
    sources = [f"one{separator}two", "three", f"fo{separator}ur"]
    corpus = open_parallel(write_file, "\n".join(sources) + "\n", "eins\nzwei\ndrei\n")
    assert read_checked(corpus)[:2] == (sources, ["eins", "zwei", "drei"])


@pytest.mark.acceptance("A9")
def test_lines_are_read_without_their_ends(write_file):
    corpus = open_parallel(write_file, b"\xef\xbb\xbfone\ttwo \r\ntwo\r\nthree", "eins\u00a0zwei  \n2\n3\n")
    assert read_checked(corpus)[:2] == (["one\ttwo ", "two", "three"], ["eins\u00a0zwei  ", "2", "3"])


@pytest.mark.acceptance("A9")
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("1\n2\n3\n", "a\nb\n", "a.en has 3 lines and a.de has 2: from line 3 on, only a.en has lines ('3')"),
        ("1\n2\n", "a\nb\nc\nd\n", "has 2 lines and a.de has 4: from line 3 on, only a.de has lines ('c')"),
        ("1\n2\n", "a\nb\n\n\n", "a.en has 2 lines and a.de has 4: from line 3 on, only a.de has lines ('')"),
    ],
)
def test_files_of_unequal_length_are_refused(source, target, message, write_file):
    with pytest.raises(UserError, match=re.escape(message)):
        read_checked(open_parallel(write_file, source, target))
    with pytest.raises(UserError, match="from line 3 on, only"):
        read_checked(open_parallel(write_file, target, source))
    for end in ("\n", " \n"):  # one blank line is ignored
        assert read_pairs(open_parallel(write_file, "1\n2\n", "a\nb\n" + end))[2].total == 2


@pytest.mark.acceptance("A10")
def test_blank_and_malformed_lines_are_counted(write_file):
    corpus = open_parallel(write_file, "1\n\n3\n4\n \t\n6\n", "a\nb\nc\n\u3000\n\u200b\nf\n")
    sources, targets, report = read_checked(corpus)
    assert (sources, targets) == (["1", "3", "6"], ["a", "c", "f"])
    assert report.examples == {"empty": ["line 2", "line 4", "line 5"]}
    assert str(report) == "a.en + a.de: 3 of 6 pairs; skipped 3 blank (first: line 2)"
    corpus = open_parallel(write_file, b"1\nna\xefve\n3\n4\n5\n", b"a\nb\nc\nd\x00d\ne\n")
    sources, targets, report = read_checked(corpus)
    assert (sources, targets) == (["1", "3", "5"], ["a", "c", "e"])
    assert report.examples["malformed"] == ["line 2", "line 4"]
    paths = [write_file("a.tsv", "1\ta\n2\tb\n"), write_file("b.tsv.gz", gzip.compress(b"3\tc\nbad\n4\td\n"))]
    sources, _, report = read_checked(open_corpus(paths))
    assert (sources, report.examples["malformed"]) == (["1", "2", "3", "4"], ["b.tsv.gz line 2"])


@pytest.mark.parametrize("line", ["\xad", "\u202e\u200f", "\u3164", "\ufe0f", "\x07 "])
def test_invisible_line_is_blank_in_every_format(write_file, line):
    rows = [json.dumps({"s": "1", "t": "a"}), line, json.dumps({"s": line, "t": "b"})]
    for corpus in (
        open_parallel(write_file, f"1\n{line}\n", "a\nb\n"),
        open_corpus([write_file("a.tsv", f"1\ta\n{line}\n{line}\tb\n")]),
        open_corpus([write_file("a.jsonl", "\n".join(rows) + "\n")], source="s", target="t"),
    ):
        sources, _, report = read_checked(corpus)
        assert (sources, report.used + report.empty) == (["1"], report.total)


@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_validation_split_shares_no_source(fraction, write_file):
    rows = [(f"source {i % 700}", f"target {i}") for i in range(1000)]  # 300 sources have two translations
    content = "".join(f"{a}\t{b}\n" for a, b in rows).replace("source 7\t", "source 7", 1)
    path = write_file("pairs.tsv", content)
    options = ({}, *({"validation_fraction": fraction, "is_validation": x} for x in (False, True)))
    results = [read_checked(open_corpus([path], **split)) for split in options]
    pairs, train, valid = (list(zip(*result[:2], strict=True)) for result in results)
    assert sorted(train + valid) == sorted(pairs)
    assert [pair for pair in pairs if pair in set(valid)] == valid  # in the order of the file
    assert not {a for a, _ in train} & {a for a, _ in valid}
    assert len(valid) == pytest.approx(1000 * fraction, abs=3 * (1000 * fraction * 1.5) ** 0.5)
    assert [report.malformed for _, _, report in results[1:]] == [1, 0]


@pytest.mark.parametrize(("fraction", "is_validation", "n"), [(1e-6, True, "none"), (0.999999, False, "all")])
def test_empty_split_is_refused(fraction, is_validation, n, write_file):
    path = write_file("two.tsv", "1\ta\n2\tb\n")
    message = rf"valid_fraction is .*: this selects {n} of the 2 pairs in two.tsv; set"
    with pytest.raises(UserError, match=message):
        read_pairs(open_corpus([path], validation_fraction=fraction, is_validation=is_validation))


def test_texts_of_both_sides_up_to_a_limit(write_file):
    corpus = open_parallel(write_file, "1\n\n3\n", "a\nb\nc\n")
    assert list(read_corpus_texts(corpus)) == ["1", "a", "3", "c"]
    assert [read_pairs(corpus, limit=n)[0] for n in (1, 2, 10**30)] == [["1"], ["1", "3"], ["1", "3"]]


def test_byte_order_marks_of_joined_files_are_removed(write_file):
    line = '\ufeff{"s": "one", "t": "eins"}\n'
    corpus = open_corpus([write_file("a.jsonl", line * 2)], source="s", target="t")
    assert read_checked(corpus)[0] == ["one"] * 2
    source = b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nthree\n"
    corpus = open_parallel(write_file, source, b"eins\n\xef\xbb\xbfzwei\n\xef\xbb\xbfdrei\n")
    sources, targets, report = read_pairs(corpus)
    assert (sources, targets) == (["one", "two", "three"], ["eins", "zwei", "drei"])
    assert (report.total, report.used, report.bom) == (3, 3, 2)
    source = b"".join(b"\xef\xbb\xbf%d\n" % i for i in range(3)) + b"more\n" * 9
    paths = [write_file("a.en", source), write_file("a.de", b"eins\n" * 12)]
    splits = (open_corpus(paths, validation_fraction=0.5, is_validation=x) for x in (False, True))
    assert [read_pairs(split)[2].bom for split in splits] == [2, 0]  # counted once


VALID = "".join(f"{n}\n" for n in range(20))


def append_line(line):
    line = line if isinstance(line, bytes) else line.encode()
    return {"a.en": VALID.encode() + line + b"\n", "a.de": VALID + "x\n"}


# files -> the error, or the counts of the report
CORPORA = {
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
    "workbook": ({"a.en": b"PK\x03\x04" + b"\n" * 26 + b"[Content_Types].xml", "a.de": "1\n"},
        "a.en is an office document, expected text: export it as CSV in UTF-8"),
    "old workbook": ({"a.en": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.de": "1\n"}, "an office document"),
    "bzip2": ({"a.en": bz2.compress(VALID.encode()), "a.de": VALID}, "bunzip2"),
    "xz": ({"a.en": lzma.compress(VALID.encode()), "a.de": VALID}, "unxz"),
    "PDF": ({"a.en": b"\n%PDF-1.4\nobj\n", "a.de": "1\n"}, "a.en is a PDF.*pdftotext"),
    "film": ({"a.en": b"\0\0\0\x20ftypisom\0\0", "a.de": "1\n"}, "a.en is sound or a film.*whisper"),
    "XML": ({"a.en": '<?xml version="1.0"?>\n<tmx/>\n', "a.de": "1\n2\n"}, "a.en is XML.*sed"),
    "notebook": ({"a.en": '{\n "cells": [{"cell_type": "code"}]}\n', "a.de": "1\n"}, "is a notebook.*jq"),
    "pretty": ({"a.en": '[\n  {"text": "one"}\n]\n', "a.de": "1\n2\n3\n"}, "is one JSON list.*jq"),
    "short SRT": ({"a.en": "1\n0:00:01,000 --> 0:00:02,000\none\n", "a.de": "1\n"}, "is subtitles"),
    "picture": ({"a.en": b"\x89PNG\r\n\x1a\n", "a.de": "1\n"}, "a picture.*tesseract"),
    "7-Zip": ({"a.en": b"7z\xbc\xaf\x27\x1c\x00", "a.de": "1\n"}, "with 7-Zip.*7z x"),
    "RAR": ({"a.en": b"Rar!\x1a\x07\x01\x00", "a.de": "1\n"}, "with RAR.*unrar x"),
    "tar": ({"a.en": b"a.txt".ljust(257, b"\0") + b"ustar\x0000", "a.de": "1\n"}, "a tar archive.*tar -xf"),
    "RTF": ({"a.en": b"{\\rtf1 text}\n", "a.de": "1\n"}, "an office document"),
    "HTML": ({"a.en": "<!-- saved -->\n<head>\n<p>one\n", "a.de": "1\n2\n"}, "a.en is HTML.*pandoc"),
    "SRT": ({"a.en": "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\none\r\n", "a.de": "1\n2\n3\n"},
        "a.en is subtitles.*grep"),
    "VTT": ({"a.en": "WEBVTT\n\n00:01.000 --> 00:02.000\none\n", "a.de": "1\n"}, "is subtitles"),
    "Parquet": ({"a.en": b"PAR1\x15\x04\x15\x80" * 9, "a.de": "1\n"}, "is damaged: Parquet"),
    "UTF-32": ({"a.en": "one\ntwo\n".encode("utf-32"), "a.de": "1\n2\n"}, "is UTF-32.*iconv"),
    "ISO-2022": ({"a.en": "東京\n都\n".encode("iso2022_jp"), "a.de": "1\n2\n"}, "is ISO-2022-JP.*iconv"),
    "UTF-16": ({"a.en": "one\ntwo\n".encode("utf-16"), "a.de": "1\n2\n"}, "is UTF-16.*iconv"),
    "UTF-16 without a mark": ({"a.en": "one\ntwo\n".encode("utf-16-le"), "a.de": "1\n2\n"},
        "iconv -f UTF-16LE"),
    "Latin-1 throughout": ({"a.en": "Bär\nschön\nfür\n".encode("latin-1"), "a.de": "1\n2\n3\n"},
        "iconv -f LATIN1"),
    "GBK throughout": ({"a.en": "你好\n世界\n".encode("gbk"), "a.de": "1\n2\n"}, "iconv -f GBK -t UTF-8"),
    "old Mac line ends": ({"a.en": b"1\r2\r3\r", "a.de": b"1\n2\n3\n"}, r"bare \\r"),
    "gzip cut short": ({"a.en": gzip.compress(VALID.encode() * 99)[:-9], "a.de": VALID * 99}, "damaged"),
    "gzip with a flipped bit": ({"a.en": gzip.compress(VALID.encode())[:-6] + b"xxxxxx", "a.de": VALID},
        "damaged"),
    "gzip of nothing": ({"a.en": gzip.compress(b""), "a.de": "1\n"}, "is empty"),
    "gzip twice": ({"a.en": gzip.compress(gzip.compress(VALID.encode())), "a.de": VALID},
        "compressed with gzip; decompress it"),
    "mostly broken further down": (
        {"a.en": b"good line\n" * 10_000 + b"\xff\n" * 20_000, "a.de": "x\n" * 30_000},
            "most lines are invalid"),
    "some Latin-1": (append_line("é".encode("latin-1")), {"used": 20, "malformed": 1}),
    "NUL in a line": (append_line("a\x00b"), {"used": 20, "malformed": 1}),
    "surrogates in UTF-8": (append_line(b"\xed\xa0\x80"), {"used": 20, "malformed": 1}),
    "overlong UTF-8": (append_line(b"\xc0\xaf"), {"used": 20, "malformed": 1}),
    "cut inside a character": (append_line("你".encode()[:2]), {"used": 20, "malformed": 1}),
    "BOM": ({"a.en": b"\xef\xbb\xbf1\n2\n", "a.de": b"\xef\xbb\xbfa\nb\n"}, {"used": 2}),
    "CRLF": ({"a.en": b"1\r\n2\r\n", "a.de": b"a\nb\n"}, {"used": 2}),
    "CRLF on blank lines": ({"a.en": b"1\r\n\r\n", "a.de": b"a\nb\n"}, {"used": 1, "empty": 1}),
    "U+2028": (append_line("a\u2028b"), {"used": 21}),
    "U+0085": (append_line("a\x85b"), {"used": 21}),
    "file separator": (append_line("a\x1cb\x0bc"), {"used": 21}),
    "only combining marks": (append_line("\u0301" * 1000), {"used": 21}),
    "right-to-left override": (append_line("\u202e" * 100), {"used": 20, "empty": 1}),
    "zero-width only": (append_line("\u200b\ufeff"), {"used": 20, "empty": 1}),
    "ideographic spaces only": (append_line("\u3000\u3000"), {"used": 20, "empty": 1}),
    "special tokens": (append_line("</s><pad><|endoftext|>"), {"used": 21}),
    "line of 10 MB": (append_line("word " * 2_000_000), {"used": 20, "too_long": 1}),
    "line of 10 MB at the end of the sample": ({"a.en": b"x" * 10_000_000, "a.de": b"1"},
        "no usable pair .* 1 overlong"),
    "a folder": ({"a.en/x": "1\n", "a.de": "1\n"}, "a.en is a directory"),
}  # fmt: skip


@pytest.mark.acceptance("A9", "A10", "R5")
@pytest.mark.whole
@pytest.mark.parametrize("name", CORPORA)
def test_unusual_corpus_is_refused_or_counted(name, tmp_path):
    files, expected = CORPORA[name]
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as error:
            read_checked(open_corpus(["a.en", "a.de"], root=tmp_path))
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 600
    else:
        report = read_checked(open_corpus(["a.en", "a.de"], root=tmp_path))[2]
        zeros = dict.fromkeys(("used", "empty", "too_long", "malformed"), 0)
        assert {kind: getattr(report, kind) for kind in zeros} == zeros | expected


FILES = {
    "a.txt": "words\n",
    "a.parquet": "words\n",
    "a.csv": "en,de\n",
    "a.tsv": "en\tde\n",
    "twice.tsv": "en\tde\tde\none\teins\tzwei\n",
    "a.jsonl": '{"en": "one", "de": "eins"}\n',
    "list.jsonl": '["one", "eins"]\n',
    "null.jsonl": '{"en": null, "de": "eins"}\n' * 2,
    "deep.jsonl": '{"t": {"en": "one", "de": "eins"}}\n',
    "one.json": '[{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]',
}
EN_DE = {"source": "en", "target": "de"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("", {}, "no files"),
        ("a.txt", {}, "cannot detect the format of a.txt"),
        ("a.csv", {}, "a.csv is empty"),
        ("a.txt a.tsv a.jsonl", {}, "differ: a.txt plain text, a.tsv TSV, a.jsonl JSONL; rename them"),
        ("a.txt a.parquet", {}, "these differ: a.txt plain text, a.parquet Parquet; rename them"),
        ("a.tsv a.jsonl", {}, "these differ: a.tsv TSV, a.jsonl JSONL"),
        ("a.txt", {"format": "parallel"}, "expects a source and a target file, got 1"),
        ("a.txt", {"format": "csv"}, "unknown format 'csv'"),
        ("a.tsv", {"target": 7}, "a.tsv has 2 columns: no column 7"),
        ("a.tsv", {"source": "eng"}, "unknown column of a.tsv 'eng'.* did you mean 'en'.*; without a header"),
        ("twice.tsv", EN_DE, "has 2 columns named 'de': .* ambiguous; rename one, or use its number"),
        ("a.jsonl", {}, "a.jsonl has the keys de, en: set source to one of them, got number 0"),
        ("a.jsonl", EN_DE | {"target": "dee"}, "unknown key of a.jsonl 'dee'.* did you mean 'de'"),
        ("null.jsonl", EN_DE, "null.jsonl: the key 'en' is null in each of its first 2 lines"),
        ("deep.jsonl", {"source": "t.en", "target": "t.dee"}, "did you mean 't.de'[?] Known: t.de, t.en"),
        ("deep.jsonl", {}, "deep.jsonl has the keys t.de, t.en: set source to one of them, got number 0"),
        ("deep.jsonl", {"source": "t", "target": "t.de"}, "'t' holds an object: .* inside it, t.en, t.de"),
        ("one.json", EN_DE, r"one.json is one JSON list; .*jq -c '.\[\]' one.json > one.jsonl"),
        ("list.jsonl", {"target": 2}, "list of 2 per line: target must be a number below that"),
        ("a.txt", {"format": "jsonl"}, "none of its first lines is a JSON object"),
        ("a.tsv", {"root": "nowhere"}, ": no directory"),
    ],
)
def test_invalid_names_and_columns_are_refused_on_opening(names, options, message, write_file, tmp_path):
    for name, content in FILES.items():
        write_file(name, content)
    with pytest.raises(UserError, match=message):
        open_corpus(names.split(), **options | {"root": tmp_path / options.get("root", ".")})


@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        ("s/b.en s/a.en", "s/a.de s/b.de"),
        ("en/a.txt en/b.txt", "de/a.txt de/b.txt"),
        ("s/a-en.txt s/b-en.txt", "s/b-de.txt s/a-de.txt"),
        ("s/a.en.gz s/b.en.gz", "s/b.de.gz s/a.de.gz"),
    ],
)
def test_several_parallel_files_are_paired_by_name(sources, targets, tmp_path):
    names = [*sources.split(), *targets.split()]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        first = "a" if "/a" in name else "b"
        (tmp_path / name).write_text(f"{first} {'de' if 'de' in name else 'en'}\n")
    texts, references, _ = read_checked(open_corpus(names, root=tmp_path))
    assert sorted(zip(texts, references, strict=True)) == [("a en", "a de"), ("b en", "b de")]
    (tmp_path / names[0]).write_text("")
    with pytest.raises(UserError, match=f"{names[0]} is empty"):
        open_corpus(names, root=tmp_path)
    other = next(name for name in targets.split() if ("/a" in name) == ("/a" in names[0]))
    (tmp_path / other).write_text("")
    assert read_checked(open_corpus(names, root=tmp_path))[2].used == 1  # both are empty: named
    with pytest.raises(UserError, match=r"has no counterpart|expects a source and a target file, got 3"):
        open_corpus(names[:-1], root=tmp_path)
