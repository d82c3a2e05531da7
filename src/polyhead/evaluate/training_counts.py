"""baseline.json of a run directory: what its baselines need of the training text, which may not be at hand later."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from polyhead.data.arrays import Ints
from polyhead.errors import UserError
from polyhead.files import read_regular, replace_file

FILE = "baseline.json"
MOST = 1 << 26  # bytes that are read of it
MAX_VOCABULARY = 1 << 24

log = logging.getLogger(__name__)


class TrainingCounts(BaseModel):
    """Counts of the training text; each task fills in what its baselines need."""

    model_config = ConfigDict(frozen=True)

    labels: dict[str, NonNegativeInt] = {}  # texts of each class
    target: str | None = None  # the most frequent one
    vocab_size: int = Field(0, ge=0, le=MAX_VOCABULARY)
    tokens: dict[int, NonNegativeInt] = {}  # by id, those that occur

    @classmethod
    def of_tokens(cls, counts: Ints, target: str | None = None) -> TrainingCounts:
        """From the count of each token (V,)."""
        there = np.flatnonzero(counts)
        tokens = dict(zip(there.tolist(), counts[there].tolist(), strict=True))
        return cls(vocab_size=len(counts), tokens=tokens, target=target)

    def token_counts(self) -> Ints:
        """The count of each token: (V,)."""
        counts: Ints = np.zeros(self.vocab_size, dtype=np.int64)
        for token, count in self.tokens.items():
            if 0 <= token < self.vocab_size:
                counts[token] = count
        return counts


def write_counts(directory: Path, counts: TrainingCounts) -> None:
    """Write baseline.json."""
    text = counts.model_dump_json(exclude_defaults=True)
    replace_file(directory / FILE, f"{text}\n".encode())


def read_counts(directory: Path | None) -> TrainingCounts | None:
    """Those of a run directory; None where there are none, or where the file is damaged, which is logged."""
    if directory is None or not (directory / FILE).exists():
        return None
    try:
        return TrainingCounts.model_validate_json(read_regular(directory / FILE, most=MOST))
    except (UserError, ValidationError) as error:
        log.warning("no baselines, since %s cannot be read: %s", directory / FILE, str(error).split("\n")[0])
        return None
