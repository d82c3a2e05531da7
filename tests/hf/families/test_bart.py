import json

import pytest
import torch
from safetensors.torch import load_file
from tests.hf.conftest import VOCABULARY, edit_json, random_run
from tests.hf.families.case_table import Case
from tests.hf.families.seq2seq import SOURCES, Seq2SeqFamily, assert_same_logits, make_seq2seq, strip_ends
from tests.hf.families.seq2seq_cases import CASES, EOS
from tests.hf.load_helpers import load_model
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf.save import build_checkpoint
from tokenizers import Tokenizer as Inner


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


class TestM2M100(Seq2SeqFamily, names=["m2m_100"]): ...


def test_languages_and_positions(tmp_path):
    reference, path = make_seq2seq(tmp_path, CASES["m2m_100"][0]), tmp_path / "tokenizer.json"
    inner = Inner.from_file(str(path))
    inner.add_special_tokens(["__en__", "de_DE"])
    english, german = inner.token_to_id("__en__"), inner.token_to_id("de_DE")
    assert (english, german) == (VOCABULARY, VOCABULARY + 1)
    inner.post_processor = TemplateProcessing(
        single="<unk> $A </s>", pair="$A $B", special_tokens=[("<unk>", 3), ("</s>", 2)]
    )
    reference.resize_token_embeddings(VOCABULARY + 2)
    reference.save_pretrained(tmp_path)
    inner.save(str(path))
    run = ph.load(tmp_path)
    for source_lang, prefix in ((None, [3]), ("en", [english, 3])):
        hypotheses = run.hypotheses(SOURCES, source_lang=source_lang, target_lang="de")
        for text, (best,) in zip(SOURCES, hypotheses, strict=True):
            source = torch.tensor([[*prefix, *run.tokenizer.encode([text])[0], EOS]])
            expected = reference.generate(source, forced_bos_token_id=german, use_cache=False)
            assert best.tokens == strip_ends(expected[0].tolist(), 2)
    with pytest.raises(UserError, match="language 'fr': this model has no token for it"):
        run.translate(SOURCES, target_lang="fr")
    position = {"name": "sinusoidal", "layout": "halves", "endpoint": True, "offset": 2}
    sizes = {"d_model": 24, "n_heads": 3, "n_layers": 1, "n_decoder_layers": 2, "max_len": 32}
    run = random_run(ModelConfig(vocab_size=VOCABULARY, **sizes, norm_first=True, position=position))
    with pytest.raises(UserError, match="to the family 'm2m_100': its pad_token_id is 0, expected 1"):
        build_checkpoint(run.model, run.tokenizer, run.generation)


class TestMbart(Seq2SeqFamily, names=["mbart"]): ...


class TestMarian(Seq2SeqFamily, names=["marian"]): ...


def test_untied_embeddings_with_share_option_are_separate(tmp_path):
    """share_encoder_decoder_embeddings has no effect where tie_word_embeddings is false."""
    sizes = CASES["marian"][-1].sizes | {"share_encoder_decoder_embeddings": True}
    reference = make_seq2seq(tmp_path, Case("MarianConfig", sizes))

    assert "model.shared.weight" in load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    assert model.config.tie_embeddings == "none"
    assert_same_logits(model, reference)


class TestPegasus(Seq2SeqFamily, names=["pegasus"]): ...
