"""Tests of cli/line_io.py: input that is not text is recognised by its first bytes."""

import bz2
import gzip
import io
import lzma
import os
import sys
import tracemalloc

import pytest
from tests.cli.cli_helpers import save_run

from polyhead.cli.line_io import read_lines, stdin_has_data
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError

TEXT = "the dog\na cat\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lzma.compress(TEXT.encode()), "compressed with xz.*unxz"),
        (bz2.compress(TEXT.encode()), "compressed with bzip2.*bunzip2"),
        (b"PK\x03\x04" + bytes(26) + b"a.txt" + TEXT.encode(), "compressed with zip.*unzip"),
        (b"\x28\xb5\x2f\xfd\x04\x00\n", "compressed with zstd.*unzstd"),
        (TEXT.encode("utf-16"), "UTF-16, expected UTF-8"),
        (b"PAR1" + bytes(20) + b"PAR1", "table"),
    ],
    ids=["xz", "bzip2", "zip", "zstd", "utf-16", "parquet"],
)
def test_packed_input_is_refused(content, message, tmp_path, monkeypatch):
    (tmp_path / "text").write_bytes(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    for source, name in ((str(tmp_path / "text"), "text"), ("-", "standard input")):
        with pytest.raises(UserError, match=f"{name} is .*{message}"):
            list(read_lines(source))


def test_binary_and_compressed_files_are_recognised(tmp_path, monkeypatch):
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UserError, match=r"model.bin is not text: 5 of its first 5 lines are not UTF-8"):
        read_lines(str(path))
    latin_1 = "Öl\nJoy\nAnger\n".encode("latin-1")
    for content, lines in ((latin_1, ["\ufffdl", "Joy", "Anger"]), (b"a\0b\n", ["a\0b"])):
        path.write_bytes(content)
        assert list(read_lines(str(path))) == lines
    (tmp_path / "text").write_bytes(gzip.compress(TEXT.encode()))
    assert list(read_lines(str(tmp_path / "text"))) == TEXT.splitlines()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(TEXT.encode()))))
    with pytest.raises(UserError, match="standard input is compressed with gzip; decompress it: gunzip"):
        list(read_lines("-"))
    monkeypatch.chdir(tmp_path)
    advice = "; to pass a text use a pipe: echo TEXT | polyhead ..."
    for source, suffix in (("the dog", advice), ("dog", "")):
        with pytest.raises(UserError) as error:
            read_lines(source)
        assert str(error.value) == f"no file {source!r}{suffix}"


class EndlessLine(io.RawIOBase):
    """256 MiB without a line end, then two lines."""

    def __init__(self):
        self.pieces = iter([*[b"a" * (1 << 20)] * 256, b"\n", b"b\n", b"c"])

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = next(self.pieces, b"")
        buffer[: len(piece)] = piece
        return len(piece)


def test_folder_has_the_lines_of_its_texts(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(f"{name}\n")
    assert list(read_lines(str(tmp_path))) == ["a.txt", "b.txt"]


def test_memory_for_an_endless_line_is_bounded(monkeypatch):
    stream = io.BufferedReader(EndlessLine(), 1 << 20)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
    tracemalloc.start()
    lines = list(read_lines("-"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == ["a" * (1 << 20), "b", "c"] and peak < 16 << 20


@pytest.mark.parametrize("source", ["/dev/zero", "/proc/kmsg", "/dev/null"])
def test_device_is_not_read(source):
    if source == "/dev/zero":
        with pytest.raises(UserError, match=r"^/dev/zero is a device; expected a file or a pipe$"):
            read_lines(source)
    else:
        assert list(read_lines(source)) == []


@pytest.mark.skipif(sys.platform == "win32", reason="pipes there cannot be asked")
@pytest.mark.parametrize("content", [b"the dog\n", b""])
def test_stdin_has_data_after_the_first_byte(content, monkeypatch):
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert not stdin_has_data(), "without waiting"
        os.write(write, content)
        os.close(write)
        assert stdin_has_data() == bool(content)
        assert stdin.read() == content.decode(), "and without reading"
    monkeypatch.setattr("sys.stdin", None)
    assert not stdin_has_data()


@pytest.mark.parametrize("bias", [99.0, -99.0])
@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("decoder", "generate RUN -"),
        ("decoder", "generate RUN ab"),
        ("decoder", "chat --chat plain RUN"),
        ("encoder-decoder", "translate RUN -"),
    ],
)
def test_outputs_with_unknown_tokens_are_counted(kind, command, bias, tmp_path, cli):
    generation = GenerationConfig(max_new_tokens=3, logit_bias={3: bias})  # <unk>
    run = save_run(tmp_path / "run", ["ab ba"], "char", kind=kind, generation=generation)
    assert run.tokenizer.unknown_id == 3
    words = [tmp_path / "run" if word == "RUN" else word for word in command.split()]
    err = cli(*words, "--temperature", 1, stdin=None if words[-1] == "ab" else "ab\nb\n").err
    count = 1 if words[-1] == "ab" else 2
    message = f"polyhead: outputs with unknown tokens, for characters that the vocabulary lacks: {count}\n"
    assert err == (message if bias > 0 else "")
