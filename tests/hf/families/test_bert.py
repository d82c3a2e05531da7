import pytest
import torch
from tests.hf.conftest import VOCABULARY, edit_json, edit_weights
from tests.hf.families.encoders import EncoderFamily, assert_close, assert_same_outputs, make_encoder
from tests.hf.families.encoders_cases import CASES, SIZES, Case
from tests.hf.load_helpers import load_model

import polyhead as ph
from polyhead.core.errors import UserError


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


class TestDistilbert(EncoderFamily, names=["distilbert"]): ...


class TestAlbert(EncoderFamily, names=["albert"]): ...


def test_default_token_roles(tmp_path):
    make_encoder(tmp_path, CASES["albert"][0])
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    tokenizer = ph.load(tmp_path).tokenizer
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    assert ids == (0, 1, 2, 3, 4)


def test_files_as_published_in_2019(tmp_path):
    """Tied tensors twice, the pooler and the order of texts beside the head, keys that no code reads."""
    case = Case("AlbertConfig", "AutoModelForPreTraining", {**SIZES, "embedding_size": 10})
    reference, tokens = make_encoder(tmp_path, case), torch.randint(5, VOCABULARY, (2, 9))

    def add_older_names(tensors):
        tensors["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"].clone()
        tensors["predictions.decoder.bias"] = tensors["predictions.bias"].clone()
        tensors["albert.embeddings.position_ids"] = torch.arange(40)[None]

    edit_weights(tmp_path, add_older_names)
    unread = {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0}
    edit_json(tmp_path / "config.json", architectures=["AlbertForMaskedLM"], down_scale_factor=1, **unread)
    with torch.no_grad():
        assert_close(load_model(tmp_path)(tokens), reference(tokens).prediction_logits)
