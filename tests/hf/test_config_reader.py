"""Tests of hf/config_reader.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import make
from tests.hf.load_helpers import GEMMA3, GLOBAL_9, LLAMA, OLMO, SCALED, SMOLLM
from transformers import CONFIG_MAPPING

import polyhead as ph
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


MIXTRAL = (
    "MixtralConfig",
    {**LLAMA, "num_local_experts": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
)

QWEN_MOE = (
    "Qwen3MoeConfig",
    {**LLAMA, "head_dim": 8, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
)

STRETCHED = {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (MIXTRAL, {"rope_parameters": None}),
        (QWEN_MOE, {"head_dim": None}),
        (GEMMA3, {"rope_parameters": None, "layer_types": None}),
        (SCALED, {"rope_parameters": {"full_attention": GLOBAL_9}}),
        (
            SCALED,
            {
                "rope_parameters": {"sliding_attention": {"rope_type": "default"}},
                "rope_local_base_freq": 77.0,
            },
        ),
        (SCALED, {"rope_scaling": STRETCHED}),
        (
            SMOLLM,
            {
                "rope_parameters": None,
                "no_rope_layers": None,
                "layer_types": None,
                "no_rope_layer_interval": None,
                "pad_token_id": 0,
            },
        ),
        (
            SMOLLM,
            {
                "no_rope_layers": None,
                "layer_types": None,
                "use_sliding_window": True,
                "sliding_window": 3,
                "pad_token_id": 0,
            },
        ),
        (OLMO, {"num_key_value_heads": None, "rope_parameters": None, "pad_token_id": 0}),
        (("LlamaConfig", LLAMA), {"rope_scaling": STRETCHED}),
        (("LlamaConfig", LLAMA), {"rope_scaling": {}, "rope_parameters": STRETCHED}),
    ],
)
def test_what_a_config_leaves_unsaid_or_says_twice_is_as_there(
    model: tuple[str, dict[str, Any]], changes: dict[str, Any], tmp_path: Path
) -> None:
    make(tmp_path, model[0], **model[1])
    path, tokens = tmp_path / "config.json", torch.randint(5, 300, (2, 9))
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with torch.no_grad():
        wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()(tokens).logits
        torch.testing.assert_close(ph.load(tmp_path).model(tokens), wanted, rtol=1e-5, atol=1e-5)


def test_a_window_that_is_null_is_none_and_one_not_given_is_theirs(tmp_path: Path) -> None:
    make(tmp_path, "MistralConfig", **LLAMA, sliding_window=None)
    assert ph.load(tmp_path).config.attention.options["window"] is None
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.pop("sliding_window", None)
    path.write_text(json.dumps(config))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).sliding_window
    assert ph.load(tmp_path).config.attention.options["window"] == theirs == 4096
