import json

import pytest
import torch
import transformers
from tests.hf.published_helpers import OTHER_CONFIGS, to_config
from transformers.core_model_loading import revert_weight_conversion

from polyhead.config.projection import ProjectionConfig
from polyhead.hf.family import FAMILY
from polyhead.hf.weight_map import to_hf
from polyhead.models import SentenceEncoder
from polyhead.models.build import model_class
from polyhead.nn.state import named_state


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_full_size_model_has_tensors_of_reference(name, tmp_path):
    """On the meta device: all parameters that are trained, and none that the files do not hold."""
    keys = OTHER_CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    config, family = to_config(keys), FAMILY.get(keys["model_type"])
    with torch.device("meta"):
        model = model_class(config)(config)
        reference_class = getattr(transformers, keys["architectures"][0])
        reference = reference_class(transformers.AutoConfig.from_pretrained(tmp_path))
    tensors = to_hf(family.rules_for(type(model).__name__), named_state(model), config)
    prefix = family.prefix if config.kind == "encoder" and not config.lm_head else ""
    shapes = {key.removeprefix(prefix): tuple(tensor.shape) for key, tensor in tensors.items()}
    parameters = {key: tensor for key, tensor in reference.named_parameters() if tensor.requires_grad}
    # under the names that the reference writes, which are not always those of its modules
    parameters = revert_weight_conversion(reference, parameters)
    assert {family.tied_weights.get(key, key) for key in parameters} - set(shapes) == set()
    stored_tensors = revert_weight_conversion(reference, reference.state_dict())
    assert shapes.items() - {(key, tuple(tensor.shape)) for key, tensor in stored_tensors.items()} == set()


@pytest.mark.parametrize(
    ("name", "n_tensors", "n_numbers"),
    [
        ("nomic-ai/nomic-embed-text-v1.5", 112, 136_731_648),
        ("alibaba-nlp-community/gte-multilingual-base", 136, 305_368_320),
    ],
)
def test_published_size_of_sentence_encoders(name, n_tensors, n_numbers):
    config, family = to_config(OTHER_CONFIGS[name]), FAMILY.get(OTHER_CONFIGS[name]["model_type"])
    with torch.device("meta"):
        tensors = to_hf(family.rules_for("SentenceEncoder"), named_state(SentenceEncoder(config)), config)
    assert (len(tensors), sum(tensor.numel() for tensor in tensors.values())) == (n_tensors, n_numbers)
    assert config.max_len == 8192


def test_components_of_embedding_gemma():
    """As its report gives them."""
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
