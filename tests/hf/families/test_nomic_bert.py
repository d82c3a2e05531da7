"""Tests of hf/families/nomic_bert.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import LIKE_NOMIC, edited, own
from tests.hf.families.encoders import EncoderFamily, out, published
from tests.hf.families.encoders_cases import BARE, NEAR, ODD, Case

from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family


class TestNomicBert(EncoderFamily):
    names = ("nomic_bert",)


FIRST_KEYS: dict[str, Any] = {
    "activation_function": "swiglu", "attn_pdrop": 0.0, "auto_map": {"AutoModel": "modeling_hf_nomic_bert.No"
        "micBertModel"},
    "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "fused_bias_fc": True,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True, "summary_type": "cls_index", "use_flash_attn": True, "use_rms_norm": False,
}  # fmt: skip

OF_TODAY = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon",
            "max_position_embeddings": "n_positions"}  # fmt: skip


@pytest.mark.parametrize("beside", [False, True])
def test_the_keys_of_the_first_code_of_nomic_bert_say_the_same(beside: bool, tmp_path: Path) -> None:
    """Alone, or beside those of today as the hub has them."""
    case = Case("NomicBertConfig", BARE, {**ODD, "rope_parameters": NEAR, "layer_norm_eps": 1e-3})
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (2, 19))
    now, said = load_model(tmp_path).config, json.loads((tmp_path / "config.json").read_text())
    old = FIRST_KEYS | {first: said[today] for today, first in OF_TODAY.items()} | {"rotary_emb_base": 50}
    more = (
        "hidden_act",
        "rope_parameters",
        "head_dim",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    )
    edited(tmp_path / "config.json", () if beside else (*OF_TODAY, *more), **old)
    found = load_model(tmp_path)
    assert found.config == now
    with torch.no_grad():
        torch.testing.assert_close(found(tokens), out(theirs, tokens), rtol=1e-5, atol=1e-5)
    if not beside:
        edited(tmp_path / "config.json", n_positions=64, max_position_embeddings=40)
        assert load_model(tmp_path).config.max_len == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_transform_bias": None}, "head_transform_bias is null, expected true"),
        ({"n_segments": 0}, "n_segments is 0, expected 1"),
        ({"head_transform_activation": "gelu"}, "head_transform_activation is 'gelu', expected 'silu'"),
        ({"attention": "softmax"}, "bias of attention 'softmax' is true, expected false"),
        ({"position": {"name": "rope", "fraction": 0.5}}, "fraction of position 'rope' is 0.5, expected 1.0"),
        ({"lm_head": False, "pooling": "mean"}, "pooling is 'mean', expected null"),
    ],
)
def test_what_nomic_bert_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_NOMIC | changes)), "nomic_bert")
