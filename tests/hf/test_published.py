import json

import pytest
import torch
from safetensors.torch import save_file
from tests.hf.conftest import VOCABULARY, edit_json, small_tokenizer
from tests.hf.published_helpers import CONFIGS, ROWS
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

import polyhead as ph

SCALED_ROPE = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
WITHOUT_ROPE_SCALING = ("EleutherAI/gpt-j-6b", "EleutherAI/gpt-neo-125m", "facebook/opt-350m")


SCALED_NAMES = [name for name in CONFIGS if name not in WITHOUT_ROPE_SCALING]


@pytest.mark.parametrize(
    ("name", "changes"), [*((name, {}) for name in CONFIGS), *((name, SCALED_ROPE) for name in SCALED_NAMES)]
)
def test_small_published_config_has_logits_of_reference(name, changes, tmp_path):
    """Every key as it was published but for sizes; the scaling is that of Gemma 3 from 4B on."""
    keys = CONFIGS[name] | ROWS[name]["small"] | {"vocab_size": VOCABULARY, "pad_token_id": None} | changes
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(tmp_path), attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    tensors = revert_weight_conversion(reference, dict(reference.named_parameters()))
    save_file({key: tensor.detach() for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
    small_tokenizer().save(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    edit_json(path, eos_token_id=2, bos_token_id=1)
    model, tokens = ph.load(tmp_path).model, torch.randint(5, VOCABULARY, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=1e-5, atol=1e-5)
