"""Sizes of the literature, as data: ``model: {preset: base}`` in a recipe, ``preset("base", ...)`` in Python."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Wu et al. (2021), the setting for small parallel corpora
    "tiny": {"n_layers": 4, "d_model": 128, "d_ff": 256, "n_heads": 4},
    # Vaswani et al. (2017), table 3
    "base": {"n_layers": 6, "d_model": 512, "d_ff": 2048, "n_heads": 8, "dropout": 0.1},
    "big": {"n_layers": 6, "d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3},
}
