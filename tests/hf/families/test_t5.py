"""Tests of hf/families/t5.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.hf.families.seq2seq import Seq2SeqFamily, close, ids, published
from tests.hf.families.seq2seq_cases import CASES

import polyhead as ph
from polyhead.hf.load import load_model


class TestT5(Seq2SeqFamily):
    names = (
        "t5",
        "mt5",
    )


def changed(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in (json.loads(path.read_text()) | values).items() if v != "gone"})
    )


def test_a_t5_of_before_scale_decoder_outputs_is_the_same(tmp_path: Path) -> None:
    published(tmp_path, CASES["t5"][1])
    before = ph.load(tmp_path).config
    changed(
        tmp_path,
        scale_decoder_outputs="gone",
        tie_word_embeddings=False,
        is_gated_act="gone",
        dense_act_fn="gone",
    )
    assert ph.load(tmp_path).config == before
    assert (before.tie_embeddings, before.logits_scale) == ("inputs", False)


def test_null_for_scale_decoder_outputs_is_not_scaled(tmp_path: Path) -> None:
    published(tmp_path, CASES["t5"][0])
    changed(tmp_path, scale_decoder_outputs=None)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    ours, (source, target) = load_model(tmp_path), (ids(2, 9), ids(2, 7))
    assert not ours.config.logits_scale
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)
