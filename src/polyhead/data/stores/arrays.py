"""Write a flat .npy file piece by piece, so that it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


@contextmanager
def flat_writers(directory: Path, dtypes: Mapping[str, type[np.generic]]) -> Iterator[dict[str, FlatWriter]]:
    """Open a NAME.npy for each name, for writing."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(FlatWriter(directory / f"{name}.npy", dtype))
            for name, dtype in dtypes.items()
        }


def open_flat_file(path: Path) -> NDArray[Any]:
    """Open the numbers of a .npy file as a memory map, or as an empty array if there are none."""
    array: NDArray[Any] = np.load(
        path, mmap_mode="r" if path.stat().st_size > 128 else None, allow_pickle=False
    )
    return array
