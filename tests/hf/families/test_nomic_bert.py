import json

import pytest
import torch
from tests.hf.conftest import VOCABULARY, edit_json
from tests.hf.families.encoders import EncoderFamily, assert_close, make_encoder, reference_output
from tests.hf.families.encoders_cases import BARE, NEAR_THETA, ODD, Case

from polyhead.hf.load import load_model


class TestNomicBert(EncoderFamily):
    names = ("nomic_bert",)


# the keys of modeling_hf_nomic_bert.py, from which the reference was written
FIRST_KEYS = {
    **dict.fromkeys(("causal", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "qkv_proj_bias"), False),
    **dict.fromkeys(("rotary_emb_interleaved", "use_rms_norm"), False),
    **dict.fromkeys(("dense_seq_output", "fused_bias_fc", "scale_attn_weights", "use_flash_attn"), True),
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    **dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor")),
    "activation_function": "swiglu",
    "max_trained_positions": 2048,
    "summary_type": "cls_index",
    "rotary_emb_fraction": 1.0,
    "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
}
OLDER_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": "n_positions",
}


@pytest.mark.parametrize("with_newer_keys", [False, True])
def test_keys_of_first_implementation(with_newer_keys, tmp_path):
    """Alone, or with those of today as checkpoints on the hub have them."""
    case = Case("NomicBertConfig", BARE, {**ODD, "rope_parameters": NEAR_THETA, "layer_norm_eps": 1e-3})
    reference, tokens = make_encoder(tmp_path, case), torch.randint(5, VOCABULARY, (2, 19))
    path = tmp_path / "config.json"
    expected, config = load_model(tmp_path).config, json.loads(path.read_text())
    older = FIRST_KEYS | {name: config[newer] for newer, name in OLDER_NAMES.items()}
    newer = (*OLDER_NAMES, "hidden_act", "rope_parameters", "head_dim")
    newer += ("hidden_dropout_prob", "attention_probs_dropout_prob")
    edit_json(path, () if with_newer_keys else newer, **older, rotary_emb_base=50)
    model = load_model(tmp_path)
    assert model.config == expected
    with torch.no_grad():
        assert_close(model(tokens), reference_output(reference, tokens))
    if not with_newer_keys:
        edit_json(path, n_positions=64, max_position_embeddings=40)
        assert load_model(tmp_path).config.max_len == 64
