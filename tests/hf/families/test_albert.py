import torch
from tests.hf.conftest import VOCABULARY, edit_json, edit_weights
from tests.hf.families.encoders import EncoderFamily, assert_close, make_encoder
from tests.hf.families.encoders_cases import CASES, SIZES, Case

import polyhead as ph
from polyhead.hf.load import load_model


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
