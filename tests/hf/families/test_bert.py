"""Tests of hf/families/bert.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import edited, of, rewritten
from tests.hf.families.encoders import EncoderFamily, published
from torch import Tensor

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model


class TestBert(EncoderFamily):
    names = ("bert",)


def as_published_in_2018(tensors: dict[str, Tensor]) -> None:
    """As the file of bert-base: gamma and beta, both heads, a pooler, ids of positions,
    tied tensors twice.
    """
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in [name for name in tensors if name.endswith(tuple(ends))]:
        end = next(end for end in ends if name.endswith(end))
        tensors[name.removesuffix(end) + ends[end]] = tensors.pop(name)
    tensors["bert.embeddings.position_ids"] = torch.arange(40)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors |= {"bert.pooler.dense.weight": torch.ones(24, 24), "bert.pooler.dense.bias": torch.ones(24)}
    tensors |= {"cls.seq_relationship.weight": torch.ones(2, 24), "cls.seq_relationship.bias": torch.ones(2)}


@pytest.mark.parametrize("architectures", [["BertForMaskedLM"], ["BertForPreTraining"]])
def test_files_as_bert_was_published_are_the_same(architectures: list[str], tmp_path: Path) -> None:
    theirs, tokens = published(of("bert", 0), tmp_path), torch.randint(5, VOCABULARY, (2, 9))
    rewritten(tmp_path, as_published_in_2018)
    more: dict[str, Any] = {
        "pooler_type": "first_token_transform",
        "directionality": "bidi",
        "position_embedding_type": "absolute",
    }
    edited(tmp_path / "config.json", architectures=architectures, **more)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):  # theirs says nothing of roles
        (tmp_path / name).write_text('{"do_lower_case": true, "model_max_length": 512}')
    run = ph.load(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(run.model(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    assert run.tokenizer.role_ids == {
        "pad_token": 0,
        "unk_token": 1,
        "cls_token": 2,
        "sep_token": 3,
        "mask_token": 4,
    }
    assert (run.tokenizer.bos_id, run.tokenizer.eos_id) == (2, 3)


def test_a_tied_bias_that_differs_is_refused(tmp_path: Path) -> None:
    published(of("bert", 0), tmp_path)
    rewritten(tmp_path, as_published_in_2018)
    rewritten(tmp_path, lambda tensors: tensors["cls.predictions.decoder.bias"].add_(1))
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.bias is not cls\.predictions\.bias"):
        load_model(tmp_path)
