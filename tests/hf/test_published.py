"""config.json as the hub has it, key by key: components, and logits with small sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.hf.conftest import VOCABULARY, edit_json, small_tokenizer
from tests.hf.published_helpers import CONFIGS, FULL, SLIDING, to_config
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

import polyhead as ph

SIZES = {"hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 7}
GROUPED_SIZES = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}
EXAONE = SIZES | {"num_hidden_layers": 5, "layer_types": [*[SLIDING] * 3, FULL, SLIDING]}
EXAONE |= {"sliding_window": 4, "head_dim": 10}
OPT = {"hidden_size": 32, "ffn_dim": 20, "num_attention_heads": 4, "num_hidden_layers": 3}
FALCON = {"hidden_size": 48, "num_attention_heads": 8, "num_kv_heads": 2, "num_hidden_layers": 3}
SMALL: dict[str, dict[str, Any]] = {
    "google/gemma-3-270m": SIZES | {"head_dim": 16, "sliding_window": 4, "num_hidden_layers": 18},
    "google/gemma-3-1b-it": SIZES | {"head_dim": 16, "sliding_window": 4},
    "HuggingFaceTB/SmolLM3-3B": SIZES | {"num_hidden_layers": 36},
    "allenai/OLMo-2-0425-1B": SIZES,
    "ibm-granite/granite-3.1-2b-base": GROUPED_SIZES,
    "ibm-granite/granite-3.0-1b-a400m-base": GROUPED_SIZES,
    "google/gemma-2b": SIZES | {"head_dim": 16},
    "bigcode/starcoder2-3b": GROUPED_SIZES | {"sliding_window": 4},
    "EleutherAI/gpt-j-6b": {"n_embd": 40, "n_layer": 3, "n_head": 2, "rotary_dim": 6},
    "EleutherAI/gpt-neo-125m": {"hidden_size": 40, "num_heads": 4, "window_size": 5},
    "LGAI-EXAONE/EXAONE-4.0-32B": EXAONE,
    "allenai/Olmo-3-1025-7B": SIZES
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 4, "num_hidden_layers": 32},
    "THUDM/GLM-4-9B-0414": GROUPED_SIZES | {"head_dim": 12},
    "CohereForAI/aya-expanse-8b": GROUPED_SIZES,
    "CohereForAI/c4ai-command-r7b-12-2024": GROUPED_SIZES | {"head_dim": 8, "sliding_window": 4},
    "baidu/ERNIE-4.5-0.3B-PT": GROUPED_SIZES | {"head_dim": 12},
    "arcee-ai/AFM-4.5B": GROUPED_SIZES | {"head_dim": 8},
    "facebook/opt-350m": OPT | {"word_embed_proj_dim": 12},
    "microsoft/phi-2": GROUPED_SIZES | {"num_key_value_heads": 4, "hidden_size": 40},
    "tiiuae/falcon-7b": {"hidden_size": 42, "num_attention_heads": 7, "num_hidden_layers": 3},
    "tiiuae/falcon-40b": FALCON,
    "stabilityai/stablelm-2-1_6b": GROUPED_SIZES,
}


SCALED_ROPE = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
WITHOUT_ROPE_SCALING = ("EleutherAI/gpt-j-6b", "EleutherAI/gpt-neo-125m", "facebook/opt-350m")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(pytest.param(name, {}, id=name) for name in CONFIGS),
        *(
            pytest.param(name, SCALED_ROPE, id=f"{name}-scaled")
            for name in CONFIGS
            if name not in WITHOUT_ROPE_SCALING
        ),
    ],
)
def test_small_published_config_has_logits_of_reference(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Every key as it was published but for sizes; the scaling is that of Gemma 3 from 4B on."""
    keys = CONFIGS[name] | SMALL[name] | {"vocab_size": VOCABULARY, "pad_token_id": None} | changes
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


def test_components_as_in_reports() -> None:
    gemma, small = to_config(CONFIGS["google/gemma-3-1b-it"]), to_config(CONFIGS["google/gemma-3-270m"])
    local = {"window": 512, "qk_norm": "zero_centered", "scale": None}
    for config in (gemma, small):
        assert len(config.layer_pattern) == 6
        for parts in config.layer_pattern[:5]:
            assert parts.attention is not None and parts.position is not None
            assert local.items() <= parts.attention.options.items()
            assert parts.position.options["theta"] == 10_000
        assert (config.layer_pattern[5].attention, config.layer_pattern[5].position) == (None, None)
        assert (config.attention.options["window"], config.position.options["theta"]) == (None, 1_000_000)
        assert (config.sandwich_norm, config.scale_embedding, config.tie_embeddings) == (True, True, "all")
    smol = to_config(CONFIGS["HuggingFaceTB/SmolLM3-3B"])
    names = [parts.position and parts.position.name for parts in smol.layer_pattern]
    assert (names, smol.position.options["theta"]) == ([None, None, None, "none"], 5_000_000)
    olmo = to_config(CONFIGS["allenai/OLMo-2-0425-1B"])
    assert (olmo.sandwich_norm, olmo.attention.options["qk_norm"], olmo.layer_pattern) == (
        "after",
        "all_heads",
        (),
    )
