import torch
import transformers
from tests.hf.conftest import edit_json
from tests.hf.families.seq2seq import Seq2SeqFamily, assert_close, make_seq2seq, random_ids
from tests.hf.families.seq2seq_cases import CASES

import polyhead as ph
from polyhead.hf.load import load_model


class TestT5(Seq2SeqFamily):
    names = ("t5", "mt5")


def test_config_without_scale_decoder_outputs(tmp_path):
    make_seq2seq(tmp_path, CASES["t5"][1])
    expected = ph.load(tmp_path).config
    newer_keys = ("scale_decoder_outputs", "is_gated_act", "dense_act_fn")
    edit_json(tmp_path / "config.json", newer_keys, tie_word_embeddings=False)
    assert ph.load(tmp_path).config == expected
    assert (expected.tie_embeddings, expected.logits_scale) == ("inputs", False)


def test_null_scale_decoder_outputs_means_unscaled(tmp_path):
    make_seq2seq(tmp_path, CASES["t5"][0])
    edit_json(tmp_path / "config.json", scale_decoder_outputs=None)
    reference = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    model, (source, target) = load_model(tmp_path), (random_ids(2, 9), random_ids(2, 7))
    assert not model.config.logits_scale
    with torch.no_grad():
        assert_close(model(source, target), reference(input_ids=source, decoder_input_ids=target).logits)
