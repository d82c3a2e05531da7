"""Tests of hf/families/mpnet.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import edited, rewritten
from tests.hf.families.encoders import EncoderFamily, out, published
from tests.hf.families.encoders_cases import CASES, CLASSES, Case

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model


class TestMpnet(EncoderFamily):
    names = ("mpnet",)


def test_a_bare_mpnet_may_say_that_it_fills_masks(tmp_path: Path) -> None:
    """As all-mpnet-base-v2 does, whose files hold no head; a masked one that lost a part of its head is
    still told.
    """
    theirs, tokens = published(CASES["mpnet"][2], tmp_path / "bare"), torch.randint(5, VOCABULARY, (2, 19))
    edited(tmp_path / "bare" / "config.json", architectures=["MPNetForMaskedLM"])
    with torch.no_grad():
        wanted = theirs(tokens)
        ours = load_model(tmp_path / "bare")
        torch.testing.assert_close(ours(tokens), wanted.last_hidden_state, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            ours.get_submodule("pooler")(ours(tokens)), wanted.pooler_output, rtol=1e-5, atol=1e-5
        )
    published(CASES["mpnet"][0], tmp_path / "masked")
    rewritten(tmp_path / "masked", lambda tensors: tensors.pop("lm_head.dense.weight"))
    with pytest.raises(UserError, match=r"missing: lm_head\.dense\.weight"):
        load_model(tmp_path / "masked")


@pytest.mark.parametrize("case", CASES["mpnet"])
def test_biases_beside_learned_positions_have_a_faster_form(case: Case, tmp_path: Path) -> None:
    """Over distances of all buckets, with padding."""
    theirs = published(Case(case.config, case.auto, {**case.sizes, "max_position_embeddings": 202}), tmp_path)
    tokens, place = torch.randint(5, VOCABULARY, (2, 200)), torch.arange(200)
    real = place < torch.tensor([[200], [150]])
    with torch.no_grad():
        wanted = out(theirs, tokens.where(real, 1), attention_mask=real.long())
        for fast in (False, True):
            found = ph.load(tmp_path, fast=fast).model(tokens, place.where(real, -1))
            there = real if case.auto != CLASSES else slice(None)
            torch.testing.assert_close(found[there], wanted[there], rtol=1e-4, atol=1e-4)
