"""Tests of hf/families/eurobert.py."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hf.encoder_common_helpers import LIKE_EUROBERT, own
from tests.hf.families.encoders import EncoderFamily

from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family


class TestEurobert(EncoderFamily):
    names = ("eurobert",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_transform_activation": "gelu"}, "head_transform_activation is 'gelu', expected 'none'"),
        ({"lm_head_bias": True}, "lm_head_bias is true, expected false"),
        (
            {"labels": ("a", "b"), "pooling": {"name": "first", "activation": "gelu"}},
            "head_transform_bias is null, expected true",
        ),
        (
            {"labels": ("a", "b"), "pooling": "mean", "head_transform_bias": True},
            "activation of pooling 'mean' is 'none', expected 'gelu'",
        ),
        ({"lm_head": False, "pooling": "mean"}, "pooling is 'mean', expected null"),
    ],
)
def test_what_eurobert_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_EUROBERT | changes)), "eurobert")
