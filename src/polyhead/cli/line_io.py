"""Line-based input and output of the verbs that work in a pipe."""

from __future__ import annotations

import io
import os
import re
import select
import stat
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, did_you_mean
from polyhead.core.i18n import tr, translate_message
from polyhead.core.output_paths import did_you_mean_path, list_folder_texts
from polyhead.data.readers import files
from polyhead.data.readers.detect_encoding import detect_encoding
from polyhead.data.readers.rows import iter_chunks
from polyhead.tokenizers.display import escape_controls

if TYPE_CHECKING:
    from polyhead.tokenizers.special_tokens import Seq2SeqTemplate
    from polyhead.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")
MAX_NAME_LENGTH = 255  # characters of a file name
MAX_NAMED_LINES = 5  # lines without an answer that are named


def read_lines(source: str) -> Iterator[str]:
    r"""Yield the lines of a file (gzip or not), a pipe, or standard input for ``-``; only "\n" ends a line.

    Of a folder, the lines of its text files.

    Invalid UTF-8 becomes U+FFFD and is reported, so that line n of the output stays line n of the input; a
    binary file is rejected.
    """
    path = Path(source)
    if source != "-" and not os.path.exists(path):
        has_space = any(map(str.isspace, source))
        hint = "; to pass a text use a pipe: echo TEXT | polyhead ..." * has_space
        raise UserError(f"no file {source!r}{hint or did_you_mean_path(path)}")
    if source == "-" and sys.stdin.isatty() and sys.stdout.isatty():
        print_warning(tr("type a line; Ctrl-D ends"))
        raw: Iterable[bytes] = read_typed_lines(is_interruptible=True)
    elif source == "-":
        raw = _iter_bounded_lines(sys.stdin.buffer)
    elif texts := list_folder_texts(path):
        return chain.from_iterable([read_lines(str(text)) for text in texts])
    elif path.is_dir():
        files.check_file(path)  # raises an error that describes the directory
        raise AssertionError("unreachable")
    elif path.is_file():
        if files.is_table(path):
            raise UserError(
                f"{source} is a table; expected lines of text: write one of its columns to a file"
            )
        files.reject_binary(path)
        raw = cast(Iterator[bytes], files.iter_lines(path, keep_beginnings=True))
    else:  # a named pipe cannot be rewound, as gzip detection requires
        raw = _iter_bounded_lines(_open_stream(path))
    return decode_lines(raw, "standard input" if source == "-" else source)


def _open_stream(path: Path) -> BinaryIO:
    """Open a named pipe or a terminal; other devices are a UserError: some never end."""
    stream = path.open("rb")
    is_device = stat.S_ISCHR(mode := os.fstat(stream.fileno()).st_mode) or stat.S_ISBLK(mode)
    if is_device and not stream.isatty() and not os.path.samefile(path, os.devnull):
        stream.close()
        raise UserError(f"{path} is a device; expected a file or a pipe")
    return stream


def _iter_bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream; of one that is too long, a beginning: its rest is read and dropped."""
    if stream.isatty():
        print_warning(tr("type a line; Ctrl-D ends"))
    while line := stream.readline(files.MAX_LINE + 1):
        yield line
        if len(line) > files.MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = stream.readline(files.MAX_LINE)


def read_typed_lines(is_interruptible: bool) -> Iterator[bytes]:
    """Yield the lines typed in the terminal after a prompt, as bytes; Ctrl-C ends them or clears a line."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    with suppress(ImportError):
        import readline  # noqa: F401  # line editing for input()
    while True:
        try:
            yield input("> ").encode(errors="surrogateescape")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            if is_interruptible:
                raise
            print()


def read_lines_or_text(source: str) -> Iterator[str]:
    """Yield the lines of a file or of standard input, or ``source`` itself as a text.

    A note is printed if the text resembles the name of a file.
    """
    if source == "-" or is_file(source):
        return read_lines(source)
    if len(source) <= MAX_NAME_LENGTH and not any(map(str.isspace, source)):
        hint = did_you_mean(source, os.listdir())
        if hint or "/" in source:
            print_warning(f"{source!r} is read as text, since no such file exists{hint}")
    return iter([source])


def is_file(source: str) -> bool:
    """Whether an argument denotes a file: it exists, or it looks like a file name.

    An empty argument, or one with whitespace that is no existing file, is a text.
    """
    if not source or any(map(str.isspace, source)):
        return os.path.isfile(source)  # also False for a text that is longer than any file name
    if os.path.exists(source) or Path(source).suffix in (".txt", ".tsv", ".gz"):
        return True
    return "/" in source and (source[0] in "/." or os.path.isdir(os.path.dirname(source)))


def decode_lines(raw: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines of bytes, without their line ends.

    Of a line of more than 1 MiB, its beginning is read. The first such line and the first that is not UTF-8
    are reported, further ones are counted. Compressed data and UTF-16 are rejected.
    """
    bad, huge, head = 0, 0, b""
    for number, line in enumerate(raw, 1):
        if number <= 2:  # of subtitles, the second line tells
            head += line
            files.reject_other_formats(name, head)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > files.MAX_LINE:
            if not huge:
                message = "line {number:,} has more than {most:,} bytes; its beginning is read"
                print_warning(tr(message, number=number, most=files.MAX_LINE))
            huge += 1
            line = _cut_inside_character(line[: files.MAX_LINE])
        text = line.removeprefix(files.BOM).decode(errors="replace")
        if "\ufffd" in text and not files.is_text(line.replace(b"\0", b"")):
            if not bad:
                hint = files.describe_encoding(detect_encoding(line))
                message = f"line {number} is not UTF-8; invalid bytes are replaced by U+FFFD"
                print_warning(message + f"; {hint}" * bool(hint))
            bad += 1
        yield text
    if bad > 1:
        print_warning(f"{bad:,} lines in total are not UTF-8")
    if huge > 1:
        message = "{count:,} lines in total have more than {most:,} bytes"
        print_warning(tr(message, count=huge, most=files.MAX_LINE))


def _cut_inside_character(line: bytes) -> bytes:
    """A line without the bytes of an incomplete character at its end."""
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(line)
    return line.removesuffix(decoder.getstate()[0])


def print_warning(message: str) -> None:
    """Print a warning on standard error, in the current language."""
    print(f"polyhead: {translate_message(message)}", file=sys.stderr)


def stdin_has_data() -> bool:
    """Whether standard input has unread data; False where this cannot be determined."""
    try:  # fails for pipes on Windows, and if standard input is closed or missing
        if sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return False


def choose_read_batch(source: str, read_batch: int) -> int:
    """Return the number of lines processed together: 1 if the user types them in a terminal."""
    return 1 if source == "-" and sys.stdin.isatty() else read_batch


def to_one_line(text: str) -> str:
    """Replace line ends, so that one output stays one line."""
    return text.replace("\r", " ").replace("\n", " ")


def to_one_column(text: str) -> str:
    """Replace line ends and tabs, so that the text stays one column of one line."""
    return to_one_line(text).replace("\t", " ")


def escape_terminal(text: str) -> str:
    """Escape terminal control sequences, but only if standard output is a terminal."""
    return escape_controls(text) if sys.stdout.isatty() else text


class UnansweredLines:
    """Names the lines whose output is blank, on standard error: the first ones, and finally their number."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, reasons: Mapping[int, str]) -> None:
        """Report lines: the reason, in the current language, by line number, from 1."""
        for number, reason in sorted(reasons.items()):
            self.count += 1
            if self.count <= MAX_NAMED_LINES:
                message = "line {number:,}: {reason}; its output is blank"
                print_warning(tr(message, number=number, reason=reason))

    def close(self) -> None:
        """Report the number of lines, if not all of them were named."""
        if self.count > MAX_NAMED_LINES:
            print_warning(tr("the output of {count:,} lines in total is blank", count=self.count))


def report_unknown_outputs(count: int) -> None:
    """Report the number of outputs with unknown tokens, whose text lacks these characters, if any."""
    if count:
        message = "outputs with unknown tokens, for characters that the vocabulary lacks: {count:,}"
        print_warning(tr(message, count=count))


class TruncatedLines:
    """The number of texts that were truncated, and the line with the most tokens among them."""

    def __init__(self) -> None:
        self.count = self.number = self.num_tokens = self.num_lines = 0

    def add(
        self, tokenizer: Tokenizer, lines: Sequence[str | Sequence[str]], num_done: int, num_truncated: int
    ) -> None:
        """Add lines, or the columns of lines, which come after ``num_done`` others."""
        if not num_truncated:
            return
        self.count += num_truncated
        self.num_lines = num_done + len(lines)
        for number, line in enumerate(lines, num_done + 1):
            num_tokens = sum(map(len, tokenizer.encode([line] if isinstance(line, str) else line)))
            if num_tokens > self.num_tokens:
                self.number, self.num_tokens = number, num_tokens

    def report(self, max_tokens: int, num_lines: int) -> None:
        """Report how many of the lines were truncated, and the longest unless it is the only one."""
        if self.count:
            longest = f"; the longest is line {self.number:,} with {self.num_tokens:,} tokens"
            message = f"truncated to {max_tokens} tokens: {self.count:,} of {num_lines:,} texts"
            print_warning(message + longest * (self.num_lines > 1))


class LineCounter:
    """Progress in lines and lines per second on standard error.

    It is shown only in a terminal to which nothing else is written.
    """

    def __init__(self, prints_to_stdout: bool = True) -> None:
        self.is_visible = sys.stderr.isatty() and not (prints_to_stdout and sys.stdout.isatty())
        self.start_time, self.lines = time.perf_counter(), 0

    def show_progress(self, num_in_chunk: int) -> None:
        """Show the completed lines plus those of the current chunk."""
        if self.is_visible:
            done = self.lines + num_in_chunk
            speed = done / max(time.perf_counter() - self.start_time, 1e-9)
            print(f"\r{done:,} lines, {speed:,.1f}/s ", end="", file=sys.stderr, flush=True)

    @contextmanager
    def renumber_errors(self) -> Iterator[None]:
        """Replace the number of a text or pair in a chunk, in a UserError, by its line number."""
        try:
            yield
        except UserError as error:
            line = re.sub(r"^(text|pair) (\d+)\b", lambda m: f"line {self.lines + int(m[2]):,}", str(error))
            raise UserError(line) from None

    def iter_batches(self, lines: Iterable[T], source: str, read_batch: int) -> Iterator[list[T]]:
        """Yield lines in batches, and count each when it is done; single ones if they are typed."""
        for batch in iter_chunks(lines, choose_read_batch(source, read_batch)):
            yield batch
            self.add(len(batch))
        self.close()

    def add(self, lines: int) -> None:
        """Add the lines of a completed chunk."""
        self.lines += lines
        self.show_progress(0)

    def close(self) -> None:
        """Move the terminal to a new line."""
        if self.is_visible and self.lines:
            print(file=sys.stderr)


class PrefixFile:
    """Forced prefixes: line n of the file is the beginning of the translation of line n.

    As ``TerminologyFile``, it is read before the model is loaded, and queried for one chunk of lines after
    another.
    """

    def __init__(self, path: str) -> None:
        self.path, self.lines, self.prefixes = path, read_lines(path), list[str]()

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        """Set the tokenizer, the template and the maximum number of output tokens."""
        self.target, self.max_len = tokenizer.target_tokenizer, max_len

    def check_lines(self, texts: Sequence[str], num_done: int) -> dict[int, str]:
        """Read the input of these lines, after ``num_done`` others; returns why it cannot be used."""
        prefixes = list(islice(self.lines, len(texts)))
        if len(prefixes) < len(texts):
            raise UserError(
                f"--prefix: {self.path} ends before line {num_done + len(prefixes) + 1} of the text"
            )
        message = "its prefix has {count:,} tokens, the model's maximum is {most:,}"
        reasons = find_long_rows(self.target.encode(prefixes), self.max_len - 1, message)
        self.prefixes = ["" if i in reasons else prefix for i, prefix in enumerate(prefixes)]
        return reasons

    def get_options(self) -> dict[str, Any]:
        """The options of ``run.translate`` for the lines that were checked last."""
        return {"prefix": self.prefixes}

    def finish(self, num_done: int) -> None:
        """Called after the last line."""
        if next(self.lines, None) is not None:
            raise UserError(f"--prefix: {self.path} has more lines than the text, which has {num_done:,}")


class TerminologyFile:
    """Required translations of words, wherever the words occur."""

    def __init__(self, path: str) -> None:
        self.path, self.entries, self.num_matched = path, read_terminology(path), 0

    def set_model(self, tokenizer: Tokenizer, template: Seq2SeqTemplate, max_len: int) -> None:
        from polyhead.generation.constraints.terminology import Terminology

        self.terminology = Terminology(self.entries, tokenizer.target_tokenizer)
        self.max_len = max_len - 1 - len(template.opening_ids)

    def check_lines(self, texts: Sequence[str], num_done: int) -> dict[int, str]:
        from polyhead.generation.constraints.lexical_constraints import LexicalConstraints

        terms = list(map(self.terminology.find_terms, texts))
        self.num_matched += sum(map(bool, terms))
        placeholders = [[0] * LexicalConstraints(line_terms).num_tokens for line_terms in terms]
        message = "its terms have {count:,} tokens, the model's maximum is {most:,}"
        return find_long_rows(placeholders, self.max_len, message)

    def get_options(self) -> dict[str, Any]:
        return {"terminology": self.terminology}

    def finish(self, num_done: int) -> None:
        print_warning(f"{self.num_matched:,} of {num_done:,} lines have terms of {self.path}")


def open_line_inputs(
    source: str, prefix: str | None, terminology: str | None
) -> list[PrefixFile | TerminologyFile]:
    """Open the files that are given; a UserError if standard input would be used twice."""
    for name, path in {"--prefix": prefix, "--terminology": terminology}.items():
        if source == path == "-":
            raise UserError(f"{name}: standard input is already used for the text; expected a file")
    prefixes = [] if prefix is None else [PrefixFile(prefix)]
    return [*([] if terminology is None else [TerminologyFile(terminology)]), *prefixes]


def find_long_rows(rows: Sequence[Sequence[int]], max_len: int, message: str) -> dict[int, str]:
    """Return a message for each row with more than ``max_len`` tokens, by its index.

    The message is translated, with the number of tokens and the maximum in place of {count:,} and {most:,}.
    """
    return {i: tr(message, count=len(row), most=max_len) for i, row in enumerate(rows) if len(row) > max_len}


def read_terminology(source: str) -> dict[str, list[str]]:
    """Read the translations of each word; a line has a word and its translations, separated by tabs."""
    entries: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(source), 1):
        if "\ufffd" in line:
            raise UserError(f"--terminology: line {number} of {source} has characters that are not UTF-8")
        word, *phrases = line.split("\t")
        if is_blank(line):
            continue
        if not phrases or any(map(is_blank, (word, *phrases))):
            raise UserError(
                f"--terminology: line {number} of {source} is {line!r}; expected a word, a tab and its "
                "translation"
            )
        entries.setdefault(word, []).extend(phrases)
    if not entries:
        raise UserError(f"--terminology: {source} has no line with a word, a tab and its translation")
    return entries
