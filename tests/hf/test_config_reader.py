import json

import pytest
import torch
import transformers
from tests.hf.conftest import edit_json, make
from tests.hf.families.causal_cases import LLAMA
from tests.hf.load_helpers import GEMMA3, GLOBAL_ROPE, OLMO, SCALED_GEMMA3, SMOLLM
from transformers import CONFIG_MAPPING

import polyhead as ph
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config

# sizes that must be given, as the tensors have them anyway
REQUIRED = ("vocab_size", "intermediate_size", "moe_intermediate_size", "num_local_experts")
REQUIRED += ("num_experts_per_tok",)
# the defaults of the reference that are not supported
SUPPORTED_KEYS = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
}


def read_config(name, keys):
    return to_model_config(FAMILY.get(name), ConfigReader(keys, "config.json"))


def test_defaults_equal_reference():
    """A config without optional keys means what it means with the defaults of the reference."""
    differing = []
    for name in FAMILY.names():
        supported_keys = SUPPORTED_KEYS.get(name, {})
        complete = json.loads(CONFIG_MAPPING[name](**supported_keys).to_json_string(use_diff=False))
        required = {key: complete[key] for key in REQUIRED if key in complete}
        if read_config(name, required | supported_keys) != read_config(name, complete):
            differing.append(name)
    assert not differing


DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e6}
MIXTRAL = ("MixtralConfig", {**LLAMA, "num_local_experts": 3, "rope_parameters": DEFAULT_ROPE})
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
QWEN_MOE = ("Qwen3MoeConfig", {**LLAMA, "head_dim": 8, **EXPERTS})
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}
LOCAL_ONLY = {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}}
LOCAL_ONLY |= {"rope_local_base_freq": 77.0}
ROPE_LAYERS = dict.fromkeys(("rope_parameters", "no_rope_layers", "layer_types", "no_rope_layer_interval"))
WINDOW = {"use_sliding_window": True, "sliding_window": 3}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (MIXTRAL, {"rope_parameters": None}),
        (QWEN_MOE, {"head_dim": None}),
        (GEMMA3, {"rope_parameters": None, "layer_types": None}),
        (SCALED_GEMMA3, {"rope_parameters": {"full_attention": GLOBAL_ROPE}}),
        (SCALED_GEMMA3, LOCAL_ONLY),
        (SCALED_GEMMA3, {"rope_scaling": LINEAR_ROPE}),
        (SMOLLM, ROPE_LAYERS | {"pad_token_id": 0}),
        (SMOLLM, {"no_rope_layers": None, "layer_types": None, "pad_token_id": 0} | WINDOW),
        (OLMO, {"num_key_value_heads": None, "rope_parameters": None, "pad_token_id": 0}),
        (("LlamaConfig", LLAMA), {"rope_scaling": LINEAR_ROPE}),
        (("LlamaConfig", LLAMA), {"rope_scaling": {}, "rope_parameters": LINEAR_ROPE}),
    ],
)
def test_missing_and_duplicate_keys_as_in_reference(model, changes, tmp_path):
    """Changes to None remove a key."""
    make(tmp_path, model[0], **model[1])
    removed_keys = tuple(key for key, value in changes.items() if value is None)
    values = {key: value for key, value in changes.items() if value is not None}
    edit_json(tmp_path / "config.json", removed_keys, **values)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(5, 300, (2, 9))
    with torch.no_grad():
        logits = ph.load(tmp_path).model(tokens)
        torch.testing.assert_close(logits, reference(tokens).logits, rtol=1e-5, atol=1e-5)


def test_null_window_means_none_missing_one_default(tmp_path):
    make(tmp_path, "MistralConfig", **LLAMA, sliding_window=None)
    assert ph.load(tmp_path).config.attention.options["window"] is None
    edit_json(tmp_path / "config.json", ("sliding_window",))
    expected = transformers.AutoConfig.from_pretrained(tmp_path).sliding_window
    assert ph.load(tmp_path).config.attention.options["window"] == expected == 4096
