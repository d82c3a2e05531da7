"""Tests of hf/families/marian.py."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.hf.families.seq2seq import Seq2SeqFamily, close, ids, published
from tests.hf.families.seq2seq_cases import CASES, Case

from polyhead.hf.load import load_model


class TestMarian(Seq2SeqFamily):
    names = ("marian",)


def test_embeddings_of_marian_that_are_said_to_be_shared_and_tied_to_nothing_are_each_their_own(
    tmp_path: Path,
) -> None:
    sizes = CASES["marian"][-1].sizes | {"share_encoder_decoder_embeddings": True}
    theirs, (source, target) = published(tmp_path, Case("MarianConfig", sizes)), (ids(2, 9), ids(2, 7))
    assert "model.shared.weight" in load_file(tmp_path / "model.safetensors")
    ours = load_model(tmp_path)
    assert ours.config.tie_embeddings == "none"
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)
