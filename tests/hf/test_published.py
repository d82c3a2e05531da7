import json

import pytest
import torch
from safetensors.torch import save_file
from tests.hf.conftest import VOCABULARY, edit_json, small_tokenizer
from tests.hf.published_helpers import CONFIGS, OTHER_CONFIGS, ROWS, to_config
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

import polyhead as ph
from polyhead.config.projection import ProjectionConfig
from polyhead.models import SentenceEncoder

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


def test_components_as_in_reports():
    gemma, small = to_config(CONFIGS["google/gemma-3-1b-it"]), to_config(CONFIGS["google/gemma-3-270m"])
    local = {"window": 512, "qk_norm": "zero_centered", "scale": None}
    for config in (gemma, small):
        assert len(config.layer_pattern) == 6
        for parts in config.layer_pattern[:5]:
            assert local.items() <= parts.attention.options.items()
            assert parts.position.options["theta"] == 10_000
        assert (config.layer_pattern[5].attention, config.layer_pattern[5].position) == (None, None)
        assert (config.attention.options["window"], config.position.options["theta"]) == (None, 1_000_000)
        assert (config.sandwich_norm, config.scale_embedding, config.tie_embeddings) == (True, True, "all")
    smol = to_config(CONFIGS["HuggingFaceTB/SmolLM3-3B"])
    names = [parts.position and parts.position.name for parts in smol.layer_pattern]
    assert (names, smol.position.options["theta"]) == ([None, None, None, "none"], 5_000_000)
    olmo = to_config(CONFIGS["allenai/OLMo-2-0425-1B"])
    parts = olmo.sandwich_norm, olmo.attention.options["qk_norm"], olmo.layer_pattern
    assert parts == ("after", "all_heads", ())
    config = to_config(OTHER_CONFIGS["google/embeddinggemma-300m"])
    assert (config.kind, config.lm_head, config.causal, config.max_len) == ("encoder", False, False, 2048)
    assert (config.kv_heads, config.head_dim, config.attention.options["scale"]) == (1, 256, None)
    windows = [parts.attention and parts.attention.options["window"] for parts in config.layer_pattern]
    thetas = [parts.position and parts.position.options["theta"] for parts in config.layer_pattern]
    assert (windows, thetas) == ([*[257] * 5, None], [*[10_000.0] * 5, None])
    assert (config.attention.options["window"], config.position.options["theta"]) == (None, 1_000_000.0)
    dense = [ProjectionConfig(width=width, activation="none", bias=False) for width in (3072, 768)]
    with torch.device("meta"):
        model = SentenceEncoder(config.model_copy(update={"dense": tuple(dense)}))
    assert sum(tensor.numel() for tensor in model.parameters()) == 307_581_696
