"""baseline.json of a run: counts of the training text, which may not be available later, for baselines."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from polyhead.core.atomic_io import file_exists, read_regular_file, replace_file
from polyhead.core.errors import UserError
from polyhead.data.stores.arrays import IdArray

BASELINE_FILE = "baseline.json"
_MAX_FILE_BYTES = 1 << 26  # maximum file size
MAX_VOCABULARY = 1 << 24

log = logging.getLogger(__name__)


class TrainingCounts(BaseModel):
    """Counts of the training text; each task fills in those that its baselines need."""

    model_config = ConfigDict(frozen=True)

    labels: dict[str, NonNegativeInt] = {}  # number of texts of each class
    target: str | None = None  # the most frequent target
    vocab_size: int = Field(0, ge=0, le=MAX_VOCABULARY)
    tokens: dict[int, NonNegativeInt] = {}  # counts by id, without zeros

    @classmethod
    def from_token_counts(cls, counts: IdArray, target: str | None = None) -> TrainingCounts:
        """From the count of each token (V,)."""
        ids = np.flatnonzero(counts)
        tokens = dict(zip(ids.tolist(), counts[ids].tolist(), strict=True))
        return cls(vocab_size=len(counts), tokens=tokens, target=target)

    def token_counts(self) -> IdArray:
        """The count of each token: (V,)."""
        counts: IdArray = np.zeros(self.vocab_size, dtype=np.int64)
        for token, count in self.tokens.items():
            if 0 <= token < self.vocab_size:
                counts[token] = count
        return counts


def write_counts(directory: Path, counts: TrainingCounts) -> None:
    """Write baseline.json."""
    text = counts.model_dump_json(exclude_defaults=True)
    replace_file(directory / BASELINE_FILE, f"{text}\n".encode())


def read_counts(directory: Path | None) -> TrainingCounts | None:
    """Read the counts of a run directory; None without them, or if the file is damaged, which is logged."""
    if directory is None:
        return None
    try:
        if not file_exists(directory / BASELINE_FILE):
            return None
        return TrainingCounts.model_validate_json(
            read_regular_file(directory / BASELINE_FILE, max_bytes=_MAX_FILE_BYTES)
        )
    except (UserError, ValidationError) as error:
        log.warning(
            "no baselines, since %s cannot be read: %s", directory / BASELINE_FILE, str(error).split("\n")[0]
        )
        return None
