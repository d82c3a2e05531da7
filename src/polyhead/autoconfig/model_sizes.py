"""Model sizes and learning rates for an amount of training text."""

from __future__ import annotations

import math
from typing import NamedTuple


class SizePreset(NamedTuple):
    """Model size and training length for training text up to ``max_bytes``."""

    max_bytes: float  # of training text
    d_model: int
    n_layers: int
    dropout: float
    vocab_size: int
    epochs: float


# as multi30k-en-de (4 MB), tatoeba-en-zh and the published base model
PAIR_SIZES = [
    SizePreset(1e6, 128, 2, 0.3, 2000, 60),
    SizePreset(1e7, 128, 4, 0.3, 8000, 40),
    SizePreset(1e8, 256, 4, 0.2, 12000, 10),
    SizePreset(1e9, 512, 6, 0.1, 24000, 5),
    SizePreset(math.inf, 512, 6, 0.1, 32000, 2),
]
# as tinyshakespeare (1 MB), wikitext-2 (11 MB) and, beyond, fewer passes over more text
TEXT_SIZES = [
    SizePreset(3e6, 128, 4, 0.1, 2000, 12),
    SizePreset(3e7, 256, 4, 0.2, 8000, 6),
    SizePreset(3e8, 384, 6, 0.1, 16000, 3),
    SizePreset(math.inf, 512, 8, 0.0, 32000, 1),
]
# as trec (0.3 MB), sst2 (3.5 MB) and agnews
LABELED_SIZES = [
    SizePreset(1e6, 128, 1, 0.2, 8000, 6),
    SizePreset(1e7, 128, 1, 0.3, 8000, 4),
    SizePreset(math.inf, 256, 1, 0.3, 16000, 2),
]
LEARNING_RATES = {128: 0.004, 256: 0.002, 384: 0.001, 512: 0.0007}  # of AdamW, by width
