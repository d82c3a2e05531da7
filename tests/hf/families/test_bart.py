"""Tests of hf/families/bart.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.families.seq2seq import Seq2SeqFamily, close, ids, published
from tests.hf.families.seq2seq_cases import CASES

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model


class TestBart(Seq2SeqFamily):
    names = ("bart",)


def changed(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in (json.loads(path.read_text()) | values).items() if v != "gone"})
    )


def test_a_bare_bart_has_no_bias_of_scores(tmp_path: Path) -> None:
    theirs = published(tmp_path, CASES["bart"][0])
    theirs.model.save_pretrained(tmp_path)
    ours, (source, target) = load_model(tmp_path), (ids(2, 9), ids(2, 7))
    assert not ours.config.lm_head_bias
    theirs.final_logits_bias.zero_()
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


def test_settings_of_before_generation_config_are_in_config_json(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published(tmp_path, CASES["bart"][0])
    wanted = ph.load(tmp_path).generation
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    changed(
        tmp_path,
        **{key: settings[key] for key in ("max_length", "num_beams", "length_penalty", "early_stopping")},
    )
    assert ph.load(tmp_path).generation == wanted
    assert (wanted.max_length_ratio, wanted.max_length_extra) == (0, 23)
    assert not caplog.messages
    changed(tmp_path, no_repeat_ngram_size=3)
    assert ph.load(tmp_path).generation == wanted.model_copy(update={"no_repeat_ngram_size": 3})
    assert not caplog.messages
    changed(tmp_path, repetition_penalty=1.5)
    ph.load(tmp_path)
    assert caplog.messages == [
        f"{tmp_path / 'config.json'}: repetition_penalty is 1.5, and translations use beam search without it"
    ]
    caplog.clear()
    changed(
        tmp_path,
        repetition_penalty=1.0,
        bad_words_ids=[[5], [7, 8]],
        suppress_tokens=[9],
    )
    assert ph.load(tmp_path).generation.bad_words
    assert [message.partition(": ")[2].partition(", and")[0] for message in caplog.messages] == [
        "bad_words_ids is [[7, 8]]",
        "suppress_tokens is [9]",
    ]
    changed(tmp_path, bad_words_ids=7)
    with pytest.raises(UserError, match="bad_words_ids is 7, expected lists of token ids"):
        ph.load(tmp_path)
