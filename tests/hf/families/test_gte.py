import pytest
import torch
import transformers
from tests.hf.conftest import edit_json, edit_weights
from tests.hf.families.encoders import EncoderFamily, assert_same_outputs, make_encoder
from tests.hf.families.encoders_cases import BARE, CASES

from polyhead.hf.load import load_model


class TestGte(EncoderFamily, names=["gte"]): ...


@pytest.mark.parametrize("number", [1, 4, 6])
def test_files_as_published_in_2024(number, tmp_path):
    """Names of tensors begin with new, and beside a bare encoder stand weights of tokens."""
    case = CASES["gte"][number]
    reference = make_encoder(tmp_path, case)

    def rename(tensors):
        for name in list(tensors):
            if not name.startswith(("lm_head.", "classifier.")):
                tensors[f"new.{name.removeprefix('gte.')}"] = tensors.pop(name)
        if case.auto == BARE:
            tensors |= {"classifier.weight": torch.ones(1, 30), "classifier.bias": torch.ones(1)}

    edit_weights(tmp_path, rename)
    older = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm"}
    older |= {"pack_qkv": True, "logn_attention_scale": False, "unpad_inputs": False}
    older |= {"auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}}
    edit_json(tmp_path / "config.json", **older)
    auto = getattr(transformers, case.auto)
    exported_model, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert_same_outputs(load_model(tmp_path), reference, exported_model.eval())
