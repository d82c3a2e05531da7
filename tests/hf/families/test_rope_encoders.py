import json

import pytest
import torch
import transformers
from tests.hf.conftest import edit_json, edit_weights
from tests.hf.families.encoders import EncoderFamily, assert_same_outputs, make_encoder
from tests.hf.families.encoders_cases import BARE, BASES, CASES, MLM, MODERN, NEAR_THETA, ODD, THETAS, Case
from tests.hf.load_helpers import load_model
from tests.hf.save_helpers import BASES as CONFIG_BASES
from tests.hf.save_helpers import model_config

from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family


class TestGte(EncoderFamily, names=["gte"]): ...


@pytest.mark.parametrize("number", [1, 4, 6])
def test_files_as_published_in_2024(number, tmp_path):
    """Names of tensors begin with new, and beside a bare encoder stand weights of tokens."""
    case = CASES["gte"][number]
    reference = make_encoder(tmp_path, case)

    def rename(tensors):
        for name in list(tensors):
            if not name.startswith(("lm_head.", "classifier.")):
                tensors[f"new.{name.removeprefix('gte.')}"] = tensors.pop(name)
        if case.auto == BARE:
            tensors |= {"classifier.weight": torch.ones(1, 30), "classifier.bias": torch.ones(1)}

    edit_weights(tmp_path, rename)
    older = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm"}
    older |= {"pack_qkv": True, "logn_attention_scale": False, "unpad_inputs": False}
    older |= {"auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}}
    edit_json(tmp_path / "config.json", **older)
    auto = getattr(transformers, case.auto)
    exported_model, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert_same_outputs(load_model(tmp_path), reference, exported_model.eval())


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


class TestEurobert(EncoderFamily, names=["eurobert"]): ...


class TestModernbert(EncoderFamily, names=["modernbert"]): ...


@pytest.mark.parametrize("interval", [1, 2, 3, 9])
def test_older_config_keys(interval, tmp_path):
    """global_attn_every_n_layers and two thetas for what layer_types and rope_parameters give now."""
    kinds = ["sliding_attention" if i % interval else "full_attention" for i in range(4)]
    case = Case("ModernBertConfig", MLM, {**MODERN, "layer_types": kinds, "rope_parameters": THETAS})
    reference, expected = make_encoder(tmp_path, case), load_model(tmp_path).config
    older = {"global_attn_every_n_layers": interval, "layer_norm_eps": 1e-5}
    older |= {"global_rope_theta": 500.0, "local_rope_theta": 50.0, "position_embedding_type": "absolute"}
    older |= {"reference_compile": None, "repad_logits_with_grad": False}
    edit_json(tmp_path / "config.json", ("layer_types", "rope_parameters"), **older)
    model = load_model(tmp_path)
    assert model.config == expected
    exported_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert_same_outputs(model, reference, exported_model)


def test_window_with_sink_is_refused():
    sink = {"attention": {"name": "softmax", "bias": False, "window": 4, "sink": 1}, "position": "rope"}
    with pytest.raises(UserError, match="sink of attention 'softmax' is 1, expected 0"):
        pick_family(
            model_config(**(CONFIG_BASES["modernbert"] | {"layer_pattern": [{}, sink]})), "modernbert"
        )
