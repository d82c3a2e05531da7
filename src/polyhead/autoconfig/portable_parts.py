"""Model parts that make a proposed model exportable to another toolkit.

``polyhead.export.targets`` checks the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_Section = dict[str, Any]

_BERT: _Section = {
    "block": "transformer", "feed_forward": "gelu", "norm_first": False, "embedding_norm": True, "segments": 2,
}  # fmt: skip
_PORTABLE_PARTS: Mapping[str, Mapping[str, _Section]] = {
    "translation": {"hf": {"position": {"name": "sinusoidal", "layout": "halves"}}},  # Pegasus
    "masked-lm": {"hf": _BERT},
    "classification": {"hf": _BERT | {"pooling": "first"}, "ctranslate2": {"block": "transformer"}},
}


def make_portable(task: str, model: _Section, export_format: str) -> _Section:
    """The model section with the parts that ``export_format`` requires."""
    return model | _PORTABLE_PARTS.get(task, {}).get(export_format, {})
