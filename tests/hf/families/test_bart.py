import json

import pytest
from tests.hf.conftest import edit_json
from tests.hf.families.seq2seq import Seq2SeqFamily, assert_same_logits, make_seq2seq
from tests.hf.families.seq2seq_cases import CASES
from tests.hf.load_helpers import load_model

import polyhead as ph
from polyhead.core.errors import UserError


class TestBart(Seq2SeqFamily, names=["bart"]): ...


def test_bare_model_has_no_logits_bias(tmp_path):
    reference = make_seq2seq(tmp_path, CASES["bart"][0])
    reference.model.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert not model.config.lm_head_bias
    reference.final_logits_bias.zero_()
    assert_same_logits(model, reference)


def test_generation_settings_in_config_json(tmp_path, caplog):
    """Where files have no generation_config.json, as before transformers 4.26."""
    make_seq2seq(tmp_path, CASES["bart"][0])
    expected, config = ph.load(tmp_path).generation, tmp_path / "config.json"
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    keys = ("max_length", "num_beams", "length_penalty", "early_stopping")
    edit_json(config, **{key: settings[key] for key in keys})
    assert ph.load(tmp_path).generation == expected
    assert (expected.max_length_ratio, expected.max_length_extra) == (0, 23)
    edit_json(config, no_repeat_ngram_size=3)
    assert ph.load(tmp_path).generation == expected.model_copy(update={"no_repeat_ngram_size": 3})
    assert not caplog.messages
    edit_json(config, repetition_penalty=1.5)
    ph.load(tmp_path)
    message = f"{config}: repetition_penalty 1.5 is ignored"
    assert caplog.messages == [message]
    caplog.clear()
    edit_json(config, repetition_penalty=1.0, bad_words_ids=[[5], [7, 8]], suppress_tokens=[9])
    assert ph.load(tmp_path).generation.bad_words
    unsupported_settings = [message.partition(": ")[2].partition(", and")[0] for message in caplog.messages]
    assert unsupported_settings == ["bad_words_ids [[7, 8]] is ignored", "suppress_tokens [9] is ignored"]
    edit_json(config, bad_words_ids=7)
    with pytest.raises(UserError, match="bad_words_ids is 7, expected lists of token ids"):
        ph.load(tmp_path)
