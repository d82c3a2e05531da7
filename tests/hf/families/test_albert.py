"""Tests of hf/families/albert.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import LIKE_ALBERT, edited, of, own, rewritten
from tests.hf.families.encoders import EncoderFamily, published
from tests.hf.families.encoders_cases import SIZES, Case
from torch import Tensor

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family


class TestAlbert(EncoderFamily):
    names = ("albert",)


def test_the_roles_of_albert_are_known_where_its_files_say_nothing(tmp_path: Path) -> None:
    published(of("albert", 0), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    found = ph.load(tmp_path).tokenizer
    assert (found.pad_id, found.unk_id, found.bos_id, found.eos_id, found.mask_id) == (0, 1, 2, 3, 4)


def test_files_as_albert_was_published_are_the_same(tmp_path: Path) -> None:
    """Tied tensors twice, the pooler and the order of texts beside the head, keys that no code reads."""
    case = Case("AlbertConfig", "AutoModelForPreTraining", {**SIZES, "embedding_size": 10})
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (2, 9))

    def older(tensors: dict[str, Tensor]) -> None:
        tensors["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"].clone()
        tensors["predictions.decoder.bias"] = tensors["predictions.bias"].clone()
        tensors["albert.embeddings.position_ids"] = torch.arange(40)[None]

    rewritten(tmp_path, older)
    more: dict[str, Any] = {
        "net_structure_type": 0,
        "gap_size": 0,
        "num_memory_blocks": 0,
        "down_scale_factor": 1,
    }
    edited(tmp_path / "config.json", architectures=["AlbertForMaskedLM"], **more)
    with torch.no_grad():
        torch.testing.assert_close(
            load_model(tmp_path)(tokens), theirs(tokens).prediction_logits, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share_layers": False}, "share_layers is false, expected true"),
        ({"d_embedding": None}, "d_embedding is null, expected 24"),
        ({"head_transform_activation": "gelu"}, "head_transform_activation is 'gelu', expected 'gelu_tanh'"),
        ({"lm_head": False}, "pooling is null, expected 'first'"),
    ],
)
def test_what_albert_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_ALBERT | changes)), "albert")
