"""Tests of hf/families/electra.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.encoder_common_helpers import LIKE_BERT, own, rewritten
from tests.hf.families.encoders import EncoderFamily, published
from tests.hf.families.encoders_cases import CLASSES, SIZES, Case

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family


class TestElectra(EncoderFamily):
    names = ("electra",)


@pytest.mark.parametrize("width", [10, 24])
def test_a_discriminator_is_opened_as_the_encoder_that_it_is(width: int, tmp_path: Path) -> None:
    """As google/electra-small-discriminator; what tells tokens apart is passed over."""
    case = Case("ElectraConfig", "AutoModelForPreTraining", {**SIZES, "embedding_size": width})
    theirs, tokens = published(case, tmp_path / "a"), torch.randint(5, VOCABULARY, (2, 19))
    rewritten(
        tmp_path / "a", lambda tensors: tensors.update({"electra.embeddings.position_ids": torch.arange(40)})
    )
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    again = transformers.AutoModel.from_pretrained(tmp_path / "b")
    assert type(again).__name__ == "ElectraModel"
    with torch.no_grad():
        wanted = theirs.electra(tokens).last_hidden_state
        for ours in (load_model(tmp_path / "a")(tokens), again.eval()(tokens).last_hidden_state):
            torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_a_classifier_that_begins_with_a_discriminator_is_one_of_electra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case("ElectraConfig", "AutoModelForPreTraining", {**SIZES, "embedding_size": 10})
    published(case, tmp_path / "a")
    lines = (f"{'merry' if i % 2 else 'sad'}\t{text}\n" for i, text in enumerate(TEXTS * 4))
    (tmp_path / "text.tsv").write_text("".join(lines))
    data = {"root": str(tmp_path), "train": "text.tsv", "valid": "text.tsv", "label": 0, "text": [1]}
    recipe = {"task": "classification", "init_from": str(tmp_path / "a"), "data": data, "train": {"steps": 1,
        "max_tokens": 128}}  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    pooling = "model.pooling={name: first, activation: gelu}"
    for name, more in (("plain", []), ("run", [pooling])):
        assert main(["train", str(tmp_path / "recipe.yaml"), f"out={tmp_path / name}", *more]) == 0
    assert main(["export", str(tmp_path / "plain"), str(tmp_path / "c"), "--family", "electra"]) == 2
    said = (
        "this model does not belong to that family: activation of pooling 'first' is 'tanh', expected 'gelu'"
    )
    assert said in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    theirs, info = getattr(transformers, CLASSES).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    tokenizer, run = transformers.AutoTokenizer.from_pretrained(tmp_path / "b"), ph.load(tmp_path / "run")
    with torch.no_grad():
        wanted = theirs.eval()(**tokenizer(TEXTS[0], return_tensors="pt")).logits.softmax(-1)[0].tolist()
    found = run.classify([TEXTS[0]])[0].probabilities
    assert found == pytest.approx({theirs.config.id2label[i]: p for i, p in enumerate(wanted)}, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_embedding": 24}, "d_embedding is 24, expected null"),
        ({"head_transform_activation": "relu"}, "head_transform_activation is 'relu', expected 'gelu'"),
        ({"lm_head": False, "pooling": "first"}, "pooling is 'first', expected null"),
    ],
)
def test_what_electra_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_BERT | changes)), "electra")
