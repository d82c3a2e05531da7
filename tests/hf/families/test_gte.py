"""Tests of hf/families/gte.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import VOCABULARY
from tests.hf.encoder_common_helpers import LIKE_GTE, edited, of, own, rewritten
from tests.hf.families.encoders import EncoderFamily, out, published
from tests.hf.families.encoders_cases import BARE
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family


class TestGte(EncoderFamily):
    names = ("gte",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_transform_bias": False}, "head_transform_bias is false, expected null"),
        ({"feed_forward": "geglu"}, "bias of feed_forward 'geglu' is false, expected 'down'"),
        ({"feed_forward": {"name": "geglu", "bias": True}}, "bias of feed_forward 'geglu' is true, expected "
            "'down'"),
        ({"head_dim": 6}, "head_dim is 6, expected 8"),
        ({"head_transform_activation": "silu"}, "head_transform_activation is 'silu', expected 'gelu'"),
        ({"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}}, "scaling of position 'rope' is "
            "'ntk', expected 'none'"),
        ({"lm_head": False, "pooling": "first"}, "pooling is 'first', expected null"),
    ],
)  # fmt: skip
def test_what_gte_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_GTE | changes)), "gte")


@pytest.mark.parametrize("number", [1, 4, 6])
def test_files_as_gte_was_published_are_the_same(number: int, tmp_path: Path) -> None:
    """Their names begin with new, as those of the reference when it has read such; beside a bare one stand
    weights of tokens.
    """
    case = of("gte", number)
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (2, 19))
    bare = (
        {"classifier.weight": torch.ones(1, 30), "classifier.bias": torch.ones(1)}
        if case.auto == BARE
        else {}
    )

    def older(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            if not name.startswith(("lm_head.", "classifier.")):
                tensors[f"new.{name.removeprefix('gte.')}"] = tensors.pop(name)
        tensors.update(bare)

    rewritten(tmp_path, older)
    more = {"position_embedding_type": "rope", "pack_qkv": True, "logn_attention_scale": False,
        "unpad_inputs": False,
            "layer_norm_type": "layer_norm", "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewMo"
                "del"}}  # fmt: skip
    edited(tmp_path / "config.json", **more)
    again, info = getattr(transformers, case.auto).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    with torch.no_grad():
        for wanted in (out(theirs, tokens), out(again.eval(), tokens)):
            torch.testing.assert_close(load_model(tmp_path)(tokens), wanted, rtol=1e-5, atol=1e-5)
