import torch
import transformers
from tests.hf.conftest import edit_json
from tests.hf.families.seq2seq import Seq2SeqFamily, assert_close, make_seq2seq, random_ids
from tests.hf.families.seq2seq_cases import CASES

import polyhead as ph
from polyhead.hf.load import load_model


class TestT5(Seq2SeqFamily):
    names = ("t5", "mt5")


def test_missing_and_null_scale_decoder_outputs(tmp_path):
    """The scale of a missing key follows from the tied head; null means that there is none."""
    tied, untied = tmp_path / "tied", tmp_path / "untied"
    make_seq2seq(untied, CASES["t5"][1])
    expected = ph.load(untied).config
    newer_keys = ("scale_decoder_outputs", "is_gated_act", "dense_act_fn")
    edit_json(untied / "config.json", newer_keys, tie_word_embeddings=False)
    assert ph.load(untied).config == expected
    assert (expected.tie_embeddings, expected.logits_scale) == ("inputs", False)
    make_seq2seq(tied, CASES["t5"][0])
    edit_json(tied / "config.json", scale_decoder_outputs=None)
    reference = transformers.AutoModelForSeq2SeqLM.from_pretrained(tied).eval()
    model, (source, target) = load_model(tied), (random_ids(2, 9), random_ids(2, 7))
    assert not model.config.logits_scale
    with torch.no_grad():
        assert_close(model(source, target), reference(input_ids=source, decoder_input_ids=target).logits)
