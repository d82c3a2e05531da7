"""Tests of hf/families/modernbert.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import LIKE_MODERNBERT, edited, own
from tests.hf.families.encoders import EncoderFamily, published
from tests.hf.families.encoders_cases import MLM, MODERN, THETAS, Case

from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family


class TestModernbert(EncoderFamily):
    names = ("modernbert",)


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_the_config_of_an_older_modernbert_says_the_same(every: int, tmp_path: Path) -> None:
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(4)]
    case = Case("ModernBertConfig", MLM, {**MODERN, "layer_types": kinds, "rope_parameters": THETAS})
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (2, 19))
    now = load_model(tmp_path).config
    old = {"global_attn_every_n_layers": every, "global_rope_theta": 500.0, "local_rope_theta": 50.0,
        "layer_norm_eps": 1e-5,
           "position_embedding_type": "absolute", "reference_compile": None,
           "repad_logits_with_grad": False}  # fmt: skip
    edited(tmp_path / "config.json", ("layer_types", "rope_parameters"), **old)
    found = load_model(tmp_path)
    assert found.config == now
    with torch.no_grad():
        torch.testing.assert_close(found(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
        again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(tokens).logits
        torch.testing.assert_close(found(tokens), again, rtol=1e-5, atol=1e-5)


def test_a_window_that_modernbert_has_not_is_named() -> None:
    sink = {"attention": {"name": "softmax", "bias": False, "window": 4, "sink": 1}, "position": "rope"}
    with pytest.raises(UserError, match="sink of attention 'softmax' is 1, expected 0"):
        pick_family(own(**(LIKE_MODERNBERT | {"layer_pattern": [{}, sink]})), "modernbert")
