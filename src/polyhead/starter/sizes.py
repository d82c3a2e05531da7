"""How large a model suits so much text, and at which rate it learns."""

from __future__ import annotations

import math
from typing import NamedTuple


class Size(NamedTuple):
    """What suits so much text."""

    most: float  # bytes of it
    d_model: int
    n_layers: int
    dropout: float
    vocab_size: int
    passes: float  # over the text


# as multi30k-en-de (4 MB), tatoeba-en-zh and the published base model
PAIRS = [
    Size(1e6, 128, 2, 0.3, 2000, 60),
    Size(1e7, 128, 4, 0.3, 8000, 40),
    Size(1e8, 256, 4, 0.2, 12000, 10),
    Size(1e9, 512, 6, 0.1, 24000, 5),
    Size(math.inf, 512, 6, 0.1, 32000, 2),
]
# as tinyshakespeare (1 MB), wikitext-2 (11 MB) and, beyond, fewer passes over more text
PLAIN = [
    Size(3e6, 128, 4, 0.1, 2000, 12),
    Size(3e7, 256, 4, 0.2, 8000, 6),
    Size(3e8, 384, 6, 0.1, 16000, 3),
    Size(math.inf, 512, 8, 0.0, 32000, 1),
]
# as trec (0.3 MB), sst2 (3.5 MB) and agnews
LABELLED = [
    Size(1e6, 128, 1, 0.2, 8000, 6),
    Size(1e7, 128, 1, 0.3, 8000, 4),
    Size(math.inf, 256, 1, 0.3, 16000, 2),
]
RATES = {128: 0.004, 256: 0.002, 384: 0.001, 512: 0.0007}  # of AdamW, by width
