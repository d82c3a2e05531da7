import pytest
import torch
from tests.hf.conftest import VOCABULARY, random_run
from tests.hf.families.seq2seq import SOURCES, Seq2SeqFamily, make_seq2seq, strip_ends
from tests.hf.families.seq2seq_cases import CASES, EOS
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf.save import build_checkpoint
from tokenizers import Tokenizer as Inner


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
