import pytest
import transformers
from tests.hf.conftest import edit_json
from tests.hf.families.encoders import EncoderFamily, assert_same_outputs, make_encoder
from tests.hf.families.encoders_cases import MLM, MODERN, THETAS, Case
from tests.hf.load_helpers import load_model
from tests.hf.save_helpers import BASES, model_config

from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family


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
        pick_family(model_config(**(BASES["modernbert"] | {"layer_pattern": [{}, sink]})), "modernbert")
