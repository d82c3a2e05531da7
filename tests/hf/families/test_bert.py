import pytest
import torch
from tests.hf.conftest import edit_json, edit_weights
from tests.hf.families.encoders import EncoderFamily, assert_same_outputs, make_encoder
from tests.hf.families.encoders_cases import CASES

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model


class TestBert(EncoderFamily, names=["bert"]): ...


def rename_as_in_2018(tensors):
    """The tensors of bert-base: gamma and beta, both heads, a pooler, position ids, tied tensors twice."""
    for ending, older in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        for name in [name for name in tensors if name.endswith(ending)]:
            tensors[name.removesuffix(ending) + older] = tensors.pop(name)
    tensors["bert.embeddings.position_ids"] = torch.arange(40)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors |= {"bert.pooler.dense.weight": torch.ones(24, 24), "bert.pooler.dense.bias": torch.ones(24)}
    tensors |= {"cls.seq_relationship.weight": torch.ones(2, 24), "cls.seq_relationship.bias": torch.ones(2)}


@pytest.mark.parametrize("architectures", [["BertForMaskedLM"], ["BertForPreTraining"]])
def test_files_as_published_in_2018(architectures, tmp_path):
    reference = make_encoder(tmp_path, CASES["bert"][0])
    edit_weights(tmp_path, rename_as_in_2018)
    older = {"pooler_type": "first_token_transform", "directionality": "bidi"}
    older["position_embedding_type"] = "absolute"
    edit_json(tmp_path / "config.json", architectures=architectures, **older)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):  # without roles of tokens
        (tmp_path / name).write_text('{"do_lower_case": true, "model_max_length": 512}')
    run = ph.load(tmp_path)
    assert_same_outputs(run.model, reference)
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    assert run.tokenizer.role_ids == {role: id for id, role in enumerate(roles)}
    assert (run.tokenizer.bos_id, run.tokenizer.eos_id) == (2, 3)
    edit_weights(tmp_path, lambda tensors: tensors["cls.predictions.decoder.bias"].add_(1))
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.bias is not cls\.predictions\.bias"):
        load_model(tmp_path)
