import json

import pytest
from tests.hf.conftest import edit_json
from tests.hf.families.encoders import EncoderFamily, assert_same_outputs, make_encoder
from tests.hf.families.encoders_cases import BARE, BASES, NEAR_THETA, ODD, Case

from polyhead.hf.load import load_model


class TestNomicBert(EncoderFamily, names=["nomic_bert"]): ...


FIRST_KEYS, OLDER_NAMES = BASES["NOMIC_KEYS"], BASES["NOMIC_NAMES"]


@pytest.mark.parametrize("with_newer_keys", [False, True])
def test_keys_of_first_implementation(with_newer_keys, tmp_path):
    """Alone, or with those of today as checkpoints on the hub have them."""
    case = Case("NomicBertConfig", BARE, {**ODD, "rope_parameters": NEAR_THETA, "layer_norm_eps": 1e-3})
    reference, path = make_encoder(tmp_path, case), tmp_path / "config.json"
    expected, config = load_model(tmp_path).config, json.loads(path.read_text())
    older = FIRST_KEYS | {name: config[newer] for newer, name in OLDER_NAMES.items()}
    newer = (*OLDER_NAMES, "hidden_act", "rope_parameters", "head_dim")
    newer += ("hidden_dropout_prob", "attention_probs_dropout_prob")
    edit_json(path, () if with_newer_keys else newer, **older, rotary_emb_base=50)
    model = load_model(tmp_path)
    assert model.config == expected
    assert_same_outputs(model, reference)
    if not with_newer_keys:
        edit_json(path, n_positions=64, max_position_embeddings=40)
        assert load_model(tmp_path).config.max_len == 64
