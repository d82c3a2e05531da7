"""Tests of export/gguf_limits.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.export.conftest import made
from tests.export.gguf_helpers import LIKE

from polyhead.core.errors import UserError
from polyhead.export.gguf import check_gguf

BARE = {"name": "softmax", "bias": False}

WINDOW = {"name": "softmax", "bias": False, "window": 4}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"kind": "encoder"}, "llama.cpp supports language models only; this model is kind='encoder'"),
        ({"feed_forward": "reglu"}, "the nearest architecture is 'llama': feed_forward is 'reglu', expected "
                                    "'swiglu'"),
        ({"feed_forward": {"name": "swiglu", "beta": 1.702}}, "beta of feed_forward 'swiglu' is "
            "1.702, expected 1"),
        ({"attention": WINDOW}, "attention has windows, expected none"),
        ({"attention": {**BARE, "scale": 0.3}, "feed_forward": "relu2"}, "feed_forward is 'relu2', expected "
            "'swiglu'"),
        ({"position": "sinusoidal"}, "position is 'sinusoidal', expected 'rope'"),
        ({"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}}, "scaling"),
        ({"attention": "linear"}, "attention is 'linear', expected 'softmax'"),
    ],
)  # fmt: skip
def test_what_it_has_no_words_for_is_refused(parts: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        check_gguf(made(**{**LIKE, **parts}), "fp32")
    assert said in str(told.value)
