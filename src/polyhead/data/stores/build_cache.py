"""Token ids in cached directories, built once and then read only: complete or absent, verified by digests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead.core.atomic_io import atomic_directory, open_regular_file, read_regular_file
from polyhead.core.errors import UserError
from polyhead.data.readers.files import fingerprint
from polyhead.data.readers.rows import Rows
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens, count_unknown_ids

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

IdArray = NDArray[Any]  # token ids, positions, row numbers


class FlatWriter:
    """Append numbers to a .npy file; the header, which contains their count, is completed at the end."""

    def __init__(self, path: Path, dtype: type[np.generic]) -> None:
        self.path, self.dtype, self.count = path, np.dtype(dtype).newbyteorder("<"), 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: ArrayLike) -> None:
        """Append numbers."""
        array: NDArray[Any] = np.asarray(values, dtype=self.dtype)
        self._file.write(array.tobytes())
        self.count += array.size

    def append_rows(self, rows: Sequence[Sequence[int]], offsets: FlatWriter) -> None:
        """Append rows, and the end of each one to ``offsets``."""
        offsets.append([*accumulate(map(len, rows), initial=self.count)][1:])
        self.append([i for row in rows for i in row])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._file.seek(0)
                self._write_header()
        finally:
            self._file.close()

    def _write_header(self) -> None:
        # numpy pads a header so that the count may grow: the second one fits in the place of the first
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        )


def open_flat_file(path: Path) -> NDArray[Any]:
    """Open the numbers of a .npy file as a memory map, or as an empty array if there are none."""
    array: NDArray[Any] = np.load(
        path, mmap_mode="r" if path.stat().st_size > 128 else None, allow_pickle=False
    )
    return array


R = TypeVar("R", bound="DataclassInstance")


def cache_dir(root: str | os.PathLike[str], kind: str, settings: object) -> Path:
    """The directory of a store under ``root``; it depends on ``settings``, which must be JSON types."""
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]
    return Path(root) / f"{kind}-{key}"


class IdStore:
    """Token ids of a corpus and their offsets, read through memory maps: built once, opened instantly.

    Files are NAME.npy for each name of ``dtypes``; names that end with "offsets" hold the start of each row
    and the end of the last.
    """

    kind: ClassVar[str]  # prefix of the names of the directories
    layout: ClassVar = 1  # version of the files; another version makes another cache
    lengths: IdArray  # of the rows in a batch
    dtypes: ClassVar[Mapping[str, type[np.generic]]]

    def __init__(self, directory: Path, report: Any) -> None:
        self.directory, self.report = directory, report
        self.arrays = {name: open_flat_file(directory / f"{name}.npy") for name in self.dtypes}
        self.ids: IdArray = self.arrays[next(iter(self.dtypes))]

    def __len__(self) -> int:
        return len(self.lengths)

    def count_unknown(self, tokenizer: Tokenizer) -> UnknownTokens:
        """Count the unknown tokens."""
        return count_unknown_ids(self.ids, tokenizer)

    @classmethod
    def build(
        cls,
        cache: str | os.PathLike[str],
        settings: object,
        report: R,
        write: Callable[[dict[str, FlatWriter], R], None],
    ) -> tuple[Path, R]:
        """(directory, report) of the store with these settings; ``write`` fills both if needed."""

        def write_files(place: Path) -> None:
            with ExitStack() as stack:
                out = {
                    name: stack.enter_context(FlatWriter(place / f"{name}.npy", dtype))
                    for name, dtype in cls.dtypes.items()
                }
                for name in cls.dtypes:
                    if name.endswith("offsets"):
                        out[name].append([0])
                write(out, report)

        directory = cache_dir(cache, cls.kind, settings)
        if (existing := _load_verified(directory, cls.dtypes, type(report))) is not None:
            return directory, existing
        try:
            return directory, _build(directory, cls.dtypes, report, write_files)
        except OSError as error:
            raise UserError(
                f"the token cache cannot be written to {directory.parent}: {error.strerror or error}; "
                "choose another directory with data.cache_dir=..."
            ) from None

    @classmethod
    def build_rows(
        cls,
        cache: str | os.PathLike[str],
        rows: Rows[Any],
        settings: Sequence[object],
        write: Callable[[dict[str, FlatWriter], Any], None],
    ) -> tuple[Path, Any]:
        """As ``build``, for the rows of files; ``settings`` are those besides the text of the files."""
        prints = [fingerprint(path) for path in rows.files]
        return cls.build(cache, [cls.layout, prints, *settings], rows.report_type(rows.source_label), write)


def _build(directory: Path, names: Iterable[str], report: R, write: Callable[[Path], None]) -> R:
    """Build the directory of NAME.npy files under a temporary name and replace a damaged one.

    Returns the report, which ``write`` completes.
    """
    try:
        with atomic_directory(directory) as place:
            write(place)
            digests = {name: _digest(place / f"{name}.npy") for name in names}
            (place / "store.json").write_text(
                json.dumps({"report": asdict(report), "sha256": digests}, indent=2) + "\n"
            )
            shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        # another process may have been faster with the same content
        if (existing := _load_verified(directory, names, type(report))) is None:
            raise
        return existing
    return report


def _load_verified(directory: Path, names: Iterable[str], report_type: type[R]) -> R | None:
    """The report of a directory whose files all match their digests; None if one is missing or differs."""
    try:
        body = json.loads(read_regular_file(directory / "store.json", max_bytes=1 << 26))
        if any(_digest(directory / f"{name}.npy") != body["sha256"][name] for name in names):
            return None
        return report_type(**body["report"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(path: Path) -> str:
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
