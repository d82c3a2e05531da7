"""Tests of hf/families/roberta.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.encoder_common_helpers import LIKE_BERT, of, own
from tests.hf.families.encoders import EncoderFamily, published

import polyhead as ph
from polyhead import Choice, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.hf import save
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


class TestRoberta(EncoderFamily):
    names = (
        "roberta",
        "xlm-roberta",
        "camembert",
    )


def test_the_roles_of_roberta_are_known_where_its_files_say_nothing(tmp_path: Path) -> None:
    published(of("roberta", 0), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    found = ph.load(tmp_path).tokenizer
    assert (found.bos_id, found.pad_id, found.eos_id, found.unk_id, found.mask_id) == (0, 1, 2, 3, 4)


def test_roberta_counts_positions_from_its_padding_token(tmp_path: Path) -> None:
    model = build(own(**LIKE_BERT | {"position": {"name": "learned", "offset": 2}}), seed=1)
    Run(model, train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), GenerationConfig()).save(
        tmp_path / "run"
    )
    with pytest.raises(UserError, match="'roberta': its pad_token_id is 0, expected 1"):
        save.build_checkpoint(model, ph.load(tmp_path / "run").tokenizer, GenerationConfig())
