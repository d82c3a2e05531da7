import pytest
from tests.hf.load_helpers import REFUSALS

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf import config_map
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import HF_GATED_ACTIVATIONS, map_activation

KEYS = (
    config_map.defaults(layers=3),
    config_map.constant(kind="decoder", attention="softmax", norm="rmsnorm", norm_first=True),
    config_map.map_int("vocab", "vocab_size"),
    config_map.map_int("dim", "d_model", 16),
    config_map.map_int("layers", "n_layers", 2),
    config_map.map_int("heads", "n_heads", 4),
    config_map.map_int("inner", "d_ff", optional=True),
    config_map.map_int("window", "attention.window", 8, optional=True),
    config_map.map_embedding_width("embedding"),
    map_activation("act", "silu", HF_GATED_ACTIVATIONS),
    config_map.map_bool("bias", "attention.bias feed_forward.bias", False),
    config_map.map_bool("parallel", "block.name", False, true_value="parallel", false_value="transformer"),
    config_map.map_norm("eps", "layernorm", 1e-5),
    config_map.constant(norm={"bias": False}),
    config_map.map_float("drop", "dropout", 0.0),
    config_map.map_float("cap", "logit_softcap", optional=True),
    config_map.ignore("embed_drop", field_paths="dropout"),
    config_map.require("causal", True, is_written=True),
    config_map.require("rotary", False),
    config_map.map_tied_embeddings(True),
)
VALUES = {"vocab": 50, "dim": 32, "layers": 5, "heads": 2, "inner": 40, "window": 6, "embedding": 20}
VALUES |= {"act": "gelu", "bias": True, "parallel": True, "eps": 0.5, "drop": 0.25, "cap": 3.0}
VALUES |= {"embed_drop": 0.25, "causal": True, "tie_word_embeddings": False}
DEFAULTS = {"vocab": 50, "dim": 16, "layers": 3, "heads": 4, "inner": 64, "window": 8, "embedding": 16}
DEFAULTS |= {"act": "silu", "bias": False, "parallel": False, "eps": 1e-5, "drop": 0.0, "cap": None}
DEFAULTS |= {"embed_drop": 0.0, "causal": True, "tie_word_embeddings": True}


def read_config(**values):
    reader = ConfigReader(values, "config.json")
    fields = config_map.read_fields(KEYS, reader)
    reader.reject_unknown()
    return ModelConfig.model_validate(fields)


def test_fields_are_written_as_read():
    config = read_config(**VALUES)
    assert (config.d_model, config.n_layers, config.d_ff, config.d_embedding) == (32, 5, 40, 20)
    assert (config.block.name, config.norm.name) == ("parallel", "layernorm")
    assert config.norm.options == {"eps": 0.5, "bias": False}
    assert config.attention.options["window"] == 6
    assert config.attention.options["bias"] is config.feed_forward.options["bias"] is True
    assert config.tie_embeddings == "none" and config_map.write_fields(KEYS, config) == VALUES
    config = read_config(vocab=50)
    assert config_map.write_fields(KEYS, config) == DEFAULTS and config.d_embedding is None
    config = read_config(vocab=50, window=None, inner=None, dim=None)
    assert config.attention.options["window"] is None and (config.d_ff, config.d_model) == (64, 16)


def test_field_functions_see_earlier_fields_and_first_layer():
    head = config_map.ConfigField(
        lambda reader, fields: {"head_dim": fields["d_model"] // 2}, lambda config: {"head": config.head_dim}
    )
    fields = config_map.read_fields((*KEYS, head), ConfigReader({"vocab": 50}, "config.json"))
    assert fields["head_dim"] == 8
    fields |= {"layer_pattern": [{"attention": {"name": "softmax", "window": 5}}]}
    config = ModelConfig.model_validate(fields)
    written_fields = config_map.write_fields((*KEYS, head), config)
    assert (written_fields["head"], written_fields["window"]) == (8, 5)


@pytest.mark.parametrize(("values", "message"), REFUSALS["config keys"])
def test_invalid_value_is_refused(values, message):
    with pytest.raises(UserError) as error:
        read_config(**({"vocab": 50} if values else {}) | values)
    assert f"config.json: {message}" in str(error.value)
