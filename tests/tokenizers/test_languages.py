"""Tests of tokenizers/languages.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.tokenizers.spm_helpers import SOURCES, lines
from tests.hf.tokenizers.spm_helpers import m2m100 as m2m100
from tests.hf.tokenizers.spm_helpers import marian as marian
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead import Choice
from polyhead.cli import main
from polyhead.run.run import Run
from polyhead.tokenizers.languages import list_languages, with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as Inner


def test_scores_are_of_what_cuts_targets(marian: tuple[Path, Any, Any]) -> None:
    directory, tokenizer, model = marian
    chinese = lines("guide.zh-CN.md", 4)
    chinese = [line[:30] for line in chinese[1:]]
    given = tokenizer([f">>fra<< {text}" for text in SOURCES], text_target=chinese)
    run = ph.load(directory)
    run = Run(
        run.model,
        run.tokenizer.with_seq2seq_template(with_languages(run.tokenizer, None, "fra")),
        run.generation,
    )
    for number, score in enumerate(run.score(SOURCES, chinese)):
        with torch.no_grad():
            loss = model(
                torch.tensor([given.input_ids[number]]), labels=torch.tensor([given["labels"][number]])
            ).loss
        assert score.tokens == len(given["labels"][number])
        assert score.log_prob == pytest.approx(-float(loss) * score.tokens, rel=1e-4)


def test_a_pair_of_m2m100_is_chosen_at_import(m2m100: tuple[Path, Any, Any], tmp_path: Path) -> None:
    whole, pair = ph.load(m2m100[0]), tmp_path / "pair"
    assert main(["import", str(m2m100[0]), str(pair), "--source-lang", "zu", "--target-lang", "de"]) == 0
    run = ph.load(pair)
    assert (
        run.tokenizer.seq2seq_template
        == with_languages(whole.tokenizer, "zu", "de")
        != whole.tokenizer.seq2seq_template
    )
    assert run.translate(SOURCES) == whole.translate(SOURCES, source_lang="zu", target_lang="de")


def test_a_pair_is_kept_where_the_decoder_starts_with_the_language(m2m100: tuple[Path, Any, Any]) -> None:
    """As that of mBART does, whose sources end with theirs."""
    inner = Inner.from_str(ph.load(m2m100[0]).tokenizer.tokenizer_json)
    names = ("</s>", "__en__")
    inner.post_processor = TemplateProcessing(
        single="$A </s> __en__", special_tokens=[(name, inner.token_to_id(name)) for name in names]
    )
    whole = Tokenizer(inner, {"eos_token": "</s>", "decoder_start_token": "__en__"})
    pair = whole.with_seq2seq_template(with_languages(whole, "zu", "de")).seq2seq_template
    assert pair == with_languages(whole, "zu", "de") != whole.seq2seq_template
    assert pair.source_suffix == (2, inner.token_to_id("__zu__"))
    assert pair.decoder_start_id == inner.token_to_id("__de__")


def test_languages_are_listed_for_who_has_to_choose(
    marian: tuple[Path, Any, Any], m2m100: tuple[Path, Any, Any]
) -> None:
    codes = sorted(m2m100[1].lang_code_to_id)
    assert list_languages(ph.load(m2m100[0]).tokenizer) == {"source": codes, "target": codes}
    assert list_languages(ph.load(marian[0]).tokenizer) == {"source": [], "target": ["cmn_Hans", "fra"]}
    assert list_languages(ph.load(marian[0]).tokenizer.target_tokenizer) == {
        "source": [],
        "target": ["cmn_Hans", "fra"],
    }
    others = Inner.from_str(
        ph.load(marian[0]).tokenizer.target_tokenizer.tokenizer_json.replace(">>fra<<", "de_DE")
    )
    others = Inner.from_str(
        others.to_str().replace(">>cmn_Hans<<", "eng_Latn")
    )  # as mBART and NLLB spell them
    names = ["de_DE", "eng_Latn"]
    assert list_languages(Tokenizer(others, {})) == {"source": names, "target": names}
    plain = train_tokenizer(SOURCES * 5, Choice("bpe"), 300, 3)  # of one pair; sentinels are no languages
    assert list_languages(plain) == {"source": [], "target": []}
