"""Tests of export/gguf_keys.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tests.export.gguf_helpers import PARTS, language_model, tensors

from polyhead.export.gguf import write_gguf


def test_scaled_rope_is_a_number_for_each_pair(tmp_path: Path) -> None:
    """Llama 3.1's rule: pairs of four turns or more in the old length as they were, those of one or fewer 8
    times slower.
    """
    write_gguf(language_model(**PARTS["scaled by numbers"][1]), tmp_path)
    turns = [16 * 100.0 ** (-2 * j / 8) / (2 * np.pi) for j in range(4)]
    kept = [min(1.0, max(0.0, (t - 1) / 3)) for t in turns]
    wanted = torch.tensor([1 / (k + (1 - k) / 8) for k in kept])
    torch.testing.assert_close(tensors(tmp_path)["rope_freqs.weight"], wanted)
    assert 1 < wanted[0] < wanted[-1] == 8
