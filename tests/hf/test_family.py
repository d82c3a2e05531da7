import json

import pytest
import torch
import transformers
from tests.hf.families import causal_cases, encoders_cases, seq2seq_cases
from tests.hf.families.encoders_cases import BARE, CLASSES, MLM
from tests.hf.published_helpers import CONFIGS, OTHER_CONFIGS, ROWS, to_config
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from polyhead.hf.family import FAMILY, to_hf
from polyhead.models import SentenceEncoder
from polyhead.models.build import model_class
from polyhead.nn.state import named_state


@pytest.mark.parametrize(
    ("model", "cases"),
    [("CausalLM", causal_cases.CASES), ("MaskedLM", encoders_cases.CASES), ("Seq2Seq", seq2seq_cases.CASES)],
)
def test_every_family_has_three_cases(model, cases):
    others = {"encoder-decoder"} if model == "Seq2Seq" else set()  # test_encoder_decoder.py
    assert cases.keys() | others == {
        name for name in FAMILY.names() if model in FAMILY.get(name).architectures
    }
    assert all(len(rows) >= 3 for rows in cases.values())
    if model == "MaskedLM":
        assert all({case.auto for case in rows} >= {MLM, CLASSES, BARE} for rows in cases.values())


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
    assert {key: x.shape for key, x in tensors.items()} == {key: x.shape for key, x in expected.items()}
    assert sum(tensor.numel() for tensor in expected.values()) == ROWS[name]["parameters"]


# numbers of tensors and parameters
PUBLISHED_SIZES = {"nomic-ai/nomic-embed-text-v1.5": (112, 136_731_648)}
PUBLISHED_SIZES |= {"alibaba-nlp-community/gte-multilingual-base": (136, 305_368_320)}


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_encoders_and_translators_have_tensors_of_reference(name, tmp_path):
    """All parameters that are trained, and none that the files do not hold."""
    keys = OTHER_CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    config, family = to_config(keys), FAMILY.get(keys["model_type"])
    with torch.device("meta"):
        model = model_class(config)(config)
        reference = getattr(transformers, keys["architectures"][0])(AutoConfig.from_pretrained(tmp_path))
    tensors = to_hf(family.rules_for(type(model).__name__), named_state(model), config)
    prefix = family.prefix if config.kind == "encoder" and not config.lm_head else ""
    shapes = {key.removeprefix(prefix): tensor.shape for key, tensor in tensors.items()}
    parameters = {key: tensor for key, tensor in reference.named_parameters() if tensor.requires_grad}
    # under the names that the reference writes, which are not always those of its modules
    parameters = revert_weight_conversion(reference, parameters)
    assert {family.tied_weights.get(key, key) for key in parameters} - set(shapes) == set()
    stored_tensors = revert_weight_conversion(reference, reference.state_dict())
    assert shapes.items() - {(key, tensor.shape) for key, tensor in stored_tensors.items()} == set()
    if name in PUBLISHED_SIZES:
        size = len(tensors), sum(tensor.numel() for tensor in tensors.values())
        assert (type(model), size, config.max_len) == (SentenceEncoder, PUBLISHED_SIZES[name], 8192)
