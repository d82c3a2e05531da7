"""Tests of hf/families/deberta_v2.py."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import edited, rewritten
from tests.hf.families.encoders import EncoderFamily, out, published
from tests.hf.families.encoders_cases import DEBERTA, MLM, UNTIED, Case

import polyhead as ph
from polyhead.cli import main
from polyhead.hf.load import load_model


class TestDebertaV2(EncoderFamily):
    names = ("deberta-v2",)


def test_the_first_head_of_deberta_is_tied_whatever_is_said(tmp_path: Path) -> None:
    theirs = published(Case("DebertaV2Config", MLM, {**DEBERTA, **UNTIED, "legacy": False}), tmp_path)
    tokens = torch.randint(5, VOCABULARY, (2, 9))
    ours = load_model(tmp_path)
    assert ours.config.tie_embeddings == "all"
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_files_as_deberta_was_published_are_the_same(tmp_path: Path) -> None:
    """As deberta-v3-base: a head by its first name, that of the discriminator, a table of positions that
    nobody reads.
    """
    case = Case("DebertaV2Config", MLM, {**DEBERTA, "legacy": False})
    theirs, tokens = published(case, tmp_path / "a"), torch.randint(5, VOCABULARY, (2, 19))
    more = {
        name: torch.ones(24) for name in ("mask_predictions.dense.bias", "mask_predictions.LayerNorm.weight")
    }
    more |= {"deberta.embeddings.position_embeddings.weight": torch.ones(40, 24)}
    rewritten(tmp_path / "a", lambda tensors: tensors.update(more))
    before = load_file(tmp_path / "a/model.safetensors")
    assert "lm_predictions.lm_head.dense.weight" in before
    with torch.no_grad():
        torch.testing.assert_close(
            load_model(tmp_path / "a")(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5
        )
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
        again, info = transformers.AutoModelForMaskedLM.from_pretrained(
            tmp_path / "b", output_loading_info=True
        )
        assert not any(info.values()), info
        torch.testing.assert_close(again.eval()(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
        edited(tmp_path / "a/config.json", ("architectures", "legacy"))  # theirs says neither
        wanted = theirs.deberta(tokens).last_hidden_state
        torch.testing.assert_close(load_model(tmp_path / "a")(tokens), wanted, rtol=1e-5, atol=1e-5)
    head = ("lm_predictions.lm_head", "cls.predictions.transform")
    after = load_file(tmp_path / "b/model.safetensors")
    for name in before.keys() - more.keys():
        today = name.replace(*head).replace("transform.bias", "bias")
        assert torch.equal(before[name], after.pop(today)), name
    assert not after


def test_distances_beyond_all_buckets_are_those_of_the_reference(tmp_path: Path) -> None:
    """With padding, plainly and in the faster form."""
    theirs = published(
        Case("DebertaV2Config", MLM, {**DEBERTA, "max_position_embeddings": 150, "position_buckets": 32}),
        tmp_path,
    )
    tokens, place = torch.randint(5, VOCABULARY, (2, 200)), torch.arange(200)
    real = place < torch.tensor([[200], [150]])
    with torch.no_grad():
        wanted = out(theirs.deberta, tokens, attention_mask=real.long())[real]
        for fast in (False, True):
            found = ph.load(tmp_path, fast=fast).model.encoder(tokens, place.where(real, -1))[real]
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
