import gc
import gzip
import hashlib
import io
import subprocess
import warnings
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table
from tests.data.plain_text_helpers import read_documents
from tests.data.readers.corpus_helpers import open_parallel, read_checked
from tests.data.readers.parquet_helpers import ROWS
from tests.data.readers.parquet_helpers import paths as paths

from polyhead.core.errors import UserError
from polyhead.data.readers import files, plain_text
from polyhead.data.readers.conversations import open_conversations
from polyhead.data.readers.detect_encoding import detect_encoding
from polyhead.data.readers.files import MAX_LINE, check_file, fingerprint, iter_lines
from polyhead.data.readers.labeled import open_labeled
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.readers.plain_text import open_text


def test_gzip_is_detected_by_content(write_file):
    source, target = (gzip.compress(text) for text in (b"one\ntwo\n", b"eins\nzwei\n"))
    corpus = open_corpus([write_file("a.en.gz", source), write_file("a.de", target)])
    assert read_checked(corpus)[:2] == (["one", "two"], ["eins", "zwei"])
    assert fingerprint(corpus.files[0]) == hashlib.sha256(b"one\ntwo\n").hexdigest()


@pytest.mark.parametrize("has_size", [True, False])
def test_gzip_that_unpacks_to_too_much_is_refused(has_size, write_file):
    bomb = gzip.compress((b"a" * 1000 + b"\n") * 60_000, 9)
    path = write_file("a.txt.gz", bomb if has_size else bomb[:-4] + bytes(4))
    with pytest.raises(UserError, match=r"a.txt.gz.* it unpacks to more than 300 times its size$"):
        fingerprint(check_file(path))
    text = "".join(f"line {i}\n" for i in range(10**5))
    path = write_file("b.txt.gz", gzip.compress(text.encode(), 9))
    assert fingerprint(check_file(path)) == hashlib.sha256(text.encode()).hexdigest()


def test_file_without_a_size_is_empty():
    with pytest.raises(UserError, match=r"^/proc/self/status is empty$"):
        check_file(Path("/proc/self/status"))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.csv", "a.csv.gz", "a.parquet"])
def test_every_file_is_closed(name, write_file):
    content = b"text\none\n"
    if name.endswith(".parquet"):
        write_table(pyarrow.table({"text": ["one"]}), buffer := io.BytesIO())
        content = buffer.getvalue()
    path = write_file(name, gzip.compress(content) if name.endswith(".gz") else content)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        assert check_file(path) == path and len(fingerprint(path)) == 64
        assert next(iter_lines(path)) in list(iter_lines(path))
        gc.collect()
    assert [str(message.message) for message in messages] == []


@pytest.mark.parametrize(("size", "n_used"), [(MAX_LINE, 3), (MAX_LINE + 1, 2), (10 * MAX_LINE + 7, 2)])
def test_overlong_line_is_skipped(size, n_used, write_file):
    report = read_checked(open_parallel(write_file, b"1\n" + b"x" * size + b"\n3\n", "a\nb\nc\n"))[2]
    assert (report.used, report.too_long) == (n_used, 3 - n_used)


def test_fingerprint_is_that_of_the_rows(paths, tmp_path):
    write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "b.parquet", compression="gzip")
    assert fingerprint(paths[0]) == fingerprint(tmp_path / "b.parquet")
    write_table(pyarrow.Table.from_pylist(ROWS[1:]), tmp_path / "b.parquet")
    assert fingerprint(paths[0]) != fingerprint(tmp_path / "b.parquet")


ENCODED = {
    "经济学家认为，今年的增长将放缓。": ["gbk"],
    "a book\t一本书\nthe house is red\t这个房子是红色的\n": ["gbk"],
    "台灣的經濟在過去十年間發生了變化": ["big5", "gbk"],
    "東京の天気は晴れです。": ["shift_jis", "euc-jp"],
    "안녕하세요. 오늘 서울의 날씨는 맑습니다.": ["euc-kr"],
    "Экономисты считают, что рост замедлится. Новая.": ["cp1251", "koi8-r", "cp866", "mac-cyrillic"],
    "МОСКВА СТОЛИЦА РОССИИ": ["cp1251", "koi8-r", "cp866"],
    "Über den Fluß fährt ein schönes Schiff.": ["latin1", "cp850", "macintosh"],
    "Það er gaman að lesa bækur við ána og þú veist": ["latin1"],
    "Šiandien gražus oras, ir mes ėjome į žalią sūrų mišką": ["cp1257"],
    "It’s a “nice” day": ["cp1252"],
    "Zażółć gęślą jaźń, proszę państwa": ["cp1250", "iso-8859-2", "cp852"],
    "Bugün çıkıp yürüyüş yapacağım": ["cp1254"],
    "Η οικονομία αναπτύσσεται": ["iso-8859-7"],
    "שלום עולם, מה שלומך היום": ["cp1255"],
    "السلام عليكم ورحمة الله": ["cp1256"],
    "สวัสดีครับ วันนี้อากาศดีมาก": ["cp874"],
    "one\ntwo 二\n": ["utf-16le", "utf-16be", "utf-32le"],
    "他的书是红色的。\n1 + 1\n": ["utf-7"],
    "Élève, où êtes-vous allé à l'été ?\n": ["utf-7"],
}


@pytest.mark.parametrize("text", ENCODED)
def test_encoding_is_named_by_its_text(text, write_file):
    for encoding in ENCODED[text]:
        content = text.encode(encoding)
        assert detect_encoding(content[:-1]).lower() == encoding  # cut inside a character
        with pytest.raises(UserError, match=f"(?i)iconv -f {encoding} -t UTF-8$"):
            check_file(write_file("a.txt", content))
        with pytest.raises(UserError, match=f"(?i)iconv -f {encoding} -t UTF-8$"):
            files.reject_binary(write_file("a.txt", content * 20_000))


TIMES = {
    "[Script Info]\nTitle: a\n[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,D,,0,0,0,,one, two\n": "one, two\n",
    "{1}{25}one\n{26}{50}two\n": "one\ntwo\n",
    "[ti:a]\n[00:01.00]one\n[00:02.50]two\n": "\none\ntwo\n",
    "[INFORMATION]\n[END INFORMATION]\n00:00:01.00,00:00:02.00\none\n": "one\n",
    "00:00:01.00,00:00:02.00\none\n": "one\n",
}


@pytest.mark.parametrize("text", TIMES)
def test_subtitles_and_lyrics_are_named(text, write_file):
    path = write_file("a.txt", text)
    with pytest.raises(UserError, match=r"is (subtitles|lyrics with times), expected plain text") as error:
        check_file(path)
    command = f"{str(error.value).partition('convert it: ')[2]} {path}"
    assert subprocess.run(command, shell=True, capture_output=True, text=True).stdout == TIMES[text]


def test_hz_is_named_and_converted(write_file):
    text = "他的书是红色的。\none ~ two\n"
    path = write_file("a.txt", text.encode("hz"))
    with pytest.raises(UserError, match="it looks like HZ; convert it: python3 -c") as error:
        check_file(path)
    command = f"{str(error.value).partition('convert it: ')[2]} < {path}"
    assert subprocess.run(command, shell=True, capture_output=True, text=True).stdout == text


def test_ascii_text_is_not_taken_for_an_encoding(write_file):
    for text in (
        "x+AOk-y\n",
        "~{\\bf a}~} 1 + 1\n",
        "C++ a+b-c +491234 q+abc-\n",
        "[1][2] one\n[3]\n",
        "{1} a\n",
    ):
        check_file(write_file("a.txt", text))


def test_lines_of_another_encoding_are_not_skipped(write_file):
    lines = [b"one"] * 17 + ["schön für".encode("latin1")] * 3
    with pytest.raises(UserError, match="3 of its first 20 lines are not; it looks like LATIN1"):
        check_file(write_file("a.txt", b"\n".join(lines)))
    for counted in (["größer".encode()], [b"one"] * 10):  # mixed files, and rare lines
        check_file(write_file("a.txt", b"\n".join(lines + counted)))


def test_no_encoding_is_guessed(write_file):
    for content in (bytes(range(256)) * 4, b"\xff\xfd\n" * 9, "ä\nö\nü\n".encode("latin1")):
        with pytest.raises(UserError, match=r"not; nor like text in another encoding$"):
            check_file(write_file("a.txt", content))


OPENERS = {
    "a.txt": (lambda paths: open_text(paths, "file"), "one\n"),
    "a.tsv": (lambda paths: open_labeled(paths, text=[0], label=1), "one\tx\ntwo\ty\n"),
    "a.jsonl": (
        lambda paths: open_conversations(paths),
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    ),
    "a.csv": (lambda paths: open_corpus(paths, source="a", target="b"), "a,b\n1,2\n"),
}


@pytest.mark.parametrize("name", OPENERS)
def test_empty_file_among_others_is_named(name, write_file):
    open_files, content = OPENERS[name]
    header = content[: content.index("\n") + 1] if name.endswith(".csv") else ""
    paths = [write_file(f"{i}{name}", text) for i, text in enumerate((header, content, content))]
    data = open_files(paths)
    assert data.files == tuple(paths[1:])
    assert data.source_label == f"1{name} + 2{name} + 0{name} (empty)"
    with pytest.raises(UserError, match=f"0{name} is empty"):
        open_files(paths[:1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.text(alphabet="ab é你\n\r", max_size=40), min_size=1, max_size=4),
    size=st.integers(9, 30),
    chunk=st.integers(1, 30),
)
def test_long_lines_are_split_without_loss(write_file, monkeypatch, parts, size, chunk):
    content = "x\n" + "".join(parts)
    path = write_file("long", content)
    spans = list(files.iter_spans(path, size))
    assert "".join(span.decode() for span in spans) == content.replace("\r\n", "\n")  # no character is cut
    assert all(len(span) <= size and span.count(b"\n") <= 1 for span in spans)
    expected = {kind: read_documents(open_text([path], kind)) for kind in ("file", "line", "blank")}
    with monkeypatch.context() as patch:
        patch.setattr(plain_text, "_CHUNK_CHARS", chunk)
        for kind, documents in expected.items():
            assert read_documents(open_text([path], kind)) == documents
        patch.setattr(plain_text, "iter_spans", lambda path: files.iter_spans(path, size))
        for kind in ("line", "file"):
            assert read_documents(open_text([path], kind))[0] == expected[kind][0]
