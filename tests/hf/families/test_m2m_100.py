"""Tests of hf/families/m2m_100.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.families.seq2seq import SOURCES, Seq2SeqFamily, published, words
from tests.hf.families.seq2seq_cases import CASES, EOS
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.hf.save import build_checkpoint as export
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as Inner


class TestM2M100(Seq2SeqFamily):
    names = ("m2m_100",)


def test_languages_may_be_chosen(tmp_path: Path) -> None:
    case = CASES["m2m_100"][0]
    theirs, path = published(tmp_path, case), tmp_path / "tokenizer.json"
    inner = Inner.from_file(str(path))
    inner.add_special_tokens(["__en__", "de_DE"])
    inner.post_processor = TemplateProcessing(
        single="<unk> $A </s>", pair="$A $B", special_tokens=[("<unk>", 3), ("</s>", 2)]
    )
    assert (inner.token_to_id("__en__"), inner.token_to_id("de_DE")) == (VOCABULARY, VOCABULARY + 1)
    theirs.resize_token_embeddings(VOCABULARY + 2)
    theirs.save_pretrained(tmp_path)
    inner.save(str(path))
    run = ph.load(tmp_path)
    for source, before in ((None, [3]), ("en", [VOCABULARY, 3])):
        found = run.hypotheses(SOURCES, source_lang=source, target_lang="de")
        for text, (best,) in zip(SOURCES, found, strict=True):
            read = torch.tensor([[*before, *run.tokenizer.encode([text])[0], EOS]])
            said = theirs.generate(read, forced_bos_token_id=VOCABULARY + 1, use_cache=False)[0].tolist()
            assert best.tokens == words(said, 2)
    with pytest.raises(UserError, match="language 'fr': this model has no token for it"):
        run.translate(SOURCES, target_lang="fr")


OWN = {"d_model": 24, "n_heads": 3, "n_layers": 1, "n_decoder_layers": 2, "max_len": 32, "dropout": 0.0}

HALVES = {"name": "sinusoidal", "layout": "halves"}

PRE = {"norm_first": True}


def test_positions_of_m2m100_begin_after_the_padding(tmp_path: Path) -> None:
    config = ModelConfig(
        vocab_size=VOCABULARY, **OWN, **PRE, position=HALVES | {"endpoint": True, "offset": 2}
    )
    run = Run(
        build(config, seed=1), train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), GenerationConfig()
    )
    with pytest.raises(
        UserError, match="not belong to the family 'm2m_100': its pad_token_id is 0, expected 1"
    ):
        export(run.model, run.tokenizer, run.generation)
