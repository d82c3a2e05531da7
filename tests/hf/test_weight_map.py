import json

import pytest
import torch
from tests.hf.published_helpers import CONFIGS, ROWS, to_config
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from polyhead.hf.family import FAMILY
from polyhead.hf.weight_map import to_hf
from polyhead.models.build import model_class
from polyhead.nn.state import named_state


@pytest.mark.parametrize("name", CONFIGS)
def test_full_size_model_has_tensors_of_reference(name, tmp_path):
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
    assert sum(tensor.numel() for tensor in expected.values()) == ROWS[name]["parameters"]
