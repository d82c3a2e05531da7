import transformers
from tests.hf.conftest import edit_json
from tests.hf.families.seq2seq import Seq2SeqFamily, assert_same_logits, make_seq2seq
from tests.hf.families.seq2seq_cases import CASES
from tests.hf.load_helpers import load_model

import polyhead as ph


class TestT5(Seq2SeqFamily, names=["t5", "mt5"]): ...


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
    reference, model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tied).eval(), load_model(tied)
    assert not model.config.logits_scale
    assert_same_logits(model, reference)
