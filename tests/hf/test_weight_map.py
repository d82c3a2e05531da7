"""Tests of hf/weight_map.py."""

import json
from pathlib import Path

import pytest
import torch
from tests.hf.published_helpers import CONFIGS, to_config
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from polyhead.hf.family import FAMILY
from polyhead.hf.weight_map import to_hf
from polyhead.models.build import model_class
from polyhead.nn.state import named_state

PARAMETERS = {
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "allenai/OLMo-2-0425-1B": 1_484_916_736,
    "ibm-granite/granite-3.1-2b-base": 2_533_531_648,
    "ibm-granite/granite-3.0-1b-a400m-base": 1_334_628_352,
    "google/gemma-2b": 2_506_172_416,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "EleutherAI/gpt-neo-125m": 125_198_592,
    "allenai/Olmo-3-1025-7B": 7_298_011_136,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32_003_216_384,
    "THUDM/GLM-4-9B-0414": 9_400_279_040,
    "CohereForAI/aya-expanse-8b": 8_028_033_024,
    "CohereForAI/c4ai-command-r7b-12-2024": 8_028_033_024,
    "baidu/ERNIE-4.5-0.3B-PT": 360_748_032,
    "arcee-ai/AFM-4.5B": 4_619_184_640,
    "facebook/opt-350m": 331_196_416,
    "microsoft/phi-2": 2_779_683_840,
    "tiiuae/falcon-7b": 6_921_720_704,
    "tiiuae/falcon-40b": 41_303_293_952,
    "stabilityai/stablelm-2-1_6b": 1_644_515_328,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_full_size_model_has_tensors_of_reference(name: str, tmp_path: Path) -> None:
    """On the meta device, where tensors take no memory."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = to_config(CONFIGS[name])
    with torch.device("meta"):
        model = model_class(config)(config)
        reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    rules = FAMILY.get(CONFIGS[name]["model_type"]).rules_for("CausalLM")
    tensors = to_hf(rules, named_state(model), config)
    # under the names of files, a tied one once
    expected = revert_weight_conversion(reference, dict(reference.named_parameters()))
    shapes, expected_shapes = (
        {key: tuple(tensor.shape) for key, tensor in one.items()} for one in (tensors, expected)
    )
    assert shapes == expected_shapes
    assert sum(tensor.numel() for tensor in expected.values()) == PARAMETERS[name]
