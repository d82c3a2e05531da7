import json

import pytest
import torch
import transformers
from tests.hf.conftest import edit_json, make
from tests.hf.load_helpers import read_rows
from transformers import CONFIG_MAPPING

import polyhead as ph
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config

# sizes that must be given, as the tensors have them anyway
REQUIRED = ("vocab_size", "intermediate_size", "moe_intermediate_size", "num_local_experts")
REQUIRED += ("num_experts_per_tok",)
# the defaults of the reference that are not supported
SUPPORTED_KEYS = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True},
    "encoder-decoder": {
        "encoder": {"model_type": "bert"},
        "decoder": {
            "model_type": "gpt2",
            "add_cross_attention": True,
            "vocab_size": 30522,
            "n_positions": 512,
        },
    },
}


def read_reader(name, keys):
    return to_model_config(FAMILY.get(name), ConfigReader(keys, "config.json"))


def test_defaults_equal_reference():
    differing = []
    for name in FAMILY.names():
        supported_keys = SUPPORTED_KEYS.get(name, {})
        complete = json.loads(CONFIG_MAPPING[name](**supported_keys).to_json_string(use_diff=False))
        required = {key: complete[key] for key in REQUIRED if key in complete}
        if read_reader(name, required | supported_keys) != read_reader(name, complete):
            differing.append(name)
    assert not differing
    # null is no window, and a missing key the default
    sizes = {"vocab_size": 300, "intermediate_size": 20}
    for keys, window in (({"sliding_window": None}, None), ({}, CONFIG_MAPPING["mistral"]().sliding_window)):
        assert read_reader("mistral", sizes | keys).attention.options["window"] == window


@pytest.mark.parametrize(("config", "sizes", "changes"), read_rows("missing_keys.jsonl"))
def test_missing_and_duplicate_keys_as_in_reference(config, sizes, changes, tmp_path):
    """Changes to None remove a key."""
    make(tmp_path, config, **sizes)
    removed_keys = tuple(key for key, value in changes.items() if value is None)
    values = {key: value for key, value in changes.items() if value is not None}
    edit_json(tmp_path / "config.json", removed_keys, **values)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(5, 300, (2, 9))
    with torch.no_grad():
        logits = ph.load(tmp_path).model(tokens)
        torch.testing.assert_close(logits, reference(tokens).logits, rtol=1e-5, atol=1e-5)
