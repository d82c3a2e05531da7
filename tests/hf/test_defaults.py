"""A config.json that leaves keys out means what it means to the reference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from polyhead.config.model import ModelConfig
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config

# sizes that we want said, as the tensors have them anyway
SAID = (
    "vocab_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_local_experts",
    "num_experts_per_tok",
)
# what the reference has where nothing is said, and is not built
BUILT: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True},
}


def read(name: str, keys: dict[str, Any]) -> ModelConfig:
    return to_model_config(FAMILY.get(name), ConfigReader(keys, "config.json"))


@pytest.mark.parametrize("name", FAMILY.names())
def test_what_a_file_does_not_say(name: str) -> None:
    built = BUILT.get(name, {})
    whole = json.loads(CONFIG_MAPPING[name](**built).to_json_string(use_diff=False))
    said = {key: whole[key] for key in SAID if key in whole}
    assert read(name, said | built) == read(name, whole)
