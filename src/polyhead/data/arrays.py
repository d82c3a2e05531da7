"""A flat .npy file written piece by piece, so that what is written may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[Any]  # tokens, places, numbers of rows


class FlatWriter:
    """Appends numbers to a .npy file; the header, which names their count, is completed at the end."""

    def __init__(self, path: Path, dtype: type[np.generic]) -> None:
        self.path, self.dtype, self.count = path, np.dtype(dtype).newbyteorder("<"), 0
        self._file = path.open("wb")
        self._header()

    def append(self, values: ArrayLike) -> None:
        """Write numbers after those already there."""
        array: NDArray[Any] = np.asarray(values, dtype=self.dtype)
        self._file.write(array.tobytes())
        self.count += array.size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.seek(0)
                self._header()
        finally:
            self._file.close()

    def _header(self) -> None:
        # numpy leaves room in a header for the count to grow, so that the second one fits where the first stood
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        )


@contextmanager
def flat_files(directory: Path, dtypes: Mapping[str, type[np.generic]]) -> Iterator[dict[str, FlatWriter]]:
    """A NAME.npy for each name, open for writing."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(FlatWriter(directory / f"{name}.npy", dtype))
            for name, dtype in dtypes.items()
        }


def open_flat(path: Path) -> NDArray[Any]:
    """The numbers of a .npy file through a memory map, or as an empty array if there are none."""
    array: NDArray[Any] = np.load(
        path, mmap_mode="r" if path.stat().st_size > 128 else None, allow_pickle=False
    )
    return array
