"""What BERT and ALBERT learned of pairs of texts beside the masks: kept, used by what begins with it, and
written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.encoder_common_helpers import edited, rewritten
from tests.hf.families.encoders import published
from tests.hf.families.encoders_cases import BARE, CLASSES, MLM, SIZES, UNTIED, Case
from tests.hf.families.test_bert import as_published_in_2018

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family
from polyhead.models import MaskedLM, NSPModel
from polyhead.nn.state import named_state
from polyhead.train.init_from import load_init_weights

FIRST = "AutoModelForPreTraining"
CASES = [
    pytest.param(Case("BertConfig", FIRST, SIZES), id="bert"),
    pytest.param(Case("BertConfig", FIRST, {**SIZES, **UNTIED, "hidden_act": "relu"}), id="bert-untied"),
    pytest.param(Case("AlbertConfig", FIRST, {**SIZES, "embedding_size": 14}), id="albert"),
]


@pytest.mark.parametrize("case", CASES)
def test_both_heads_and_the_pooler_are_those_of_the_reference(case: Case, tmp_path: Path) -> None:
    theirs, ours = published(case, tmp_path), load_model(tmp_path)
    tokens, segments = torch.randint(5, VOCABULARY, (3, 20)), torch.randint(0, 2, (3, 20))
    assert isinstance(ours, NSPModel)
    with torch.no_grad():
        wanted = theirs(tokens, token_type_ids=segments)
        pairs = wanted.get("seq_relationship_logits", wanted.get("sop_logits"))
        pooled = ours.pooler(ours.encoder(tokens, None, segments))
        torch.testing.assert_close(
            ours(tokens, None, segments), wanted.prediction_logits, rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(ours.follows(pooled), pairs, rtol=1e-5, atol=1e-5)
    texts, tokenizer = TEXTS, transformers.AutoTokenizer.from_pretrained(tmp_path)
    for vector, text in zip(ph.load(tmp_path).embed(texts, pooling="own"), texts, strict=True):
        with torch.no_grad():
            own = theirs.base_model(**tokenizer(text, return_tensors="pt")).pooler_output[0]
        torch.testing.assert_close(vector, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("said", ["PreTraining", "MaskedLM"])
@pytest.mark.parametrize("case", CASES)
def test_all_of_it_is_written_again(
    case: Case, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the files call themselves: those of bert-base-uncased hold more than they say."""
    theirs, tokens = published(case, tmp_path / "a"), torch.randint(5, VOCABULARY, (2, 15))
    kind = f"{case.config.removesuffix('Config')}For"
    edited(tmp_path / "a/config.json", architectures=[kind + said])
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    again, info = getattr(transformers, FIRST).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.architectures == [f"{kind}PreTraining"]
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    for name, own in before.items():
        assert torch.equal(before.get(name.removesuffix("bias") + "decoder.bias", own), after[name]), name
    with torch.no_grad():
        for found, wanted in zip(again.eval()(tokens).to_tuple(), theirs(tokens).to_tuple(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert not caplog.messages


@pytest.mark.parametrize("case", CASES)
def test_a_classifier_begins_with_the_pooler(case: Case, tmp_path: Path) -> None:
    """As that of the reference does."""
    published(case, tmp_path / "a")
    theirs, info = getattr(transformers, CLASSES).from_pretrained(tmp_path / "a", output_loading_info=True)
    assert {*info["missing_keys"]} == {"classifier.weight", "classifier.bias"}
    origin = ph.load(tmp_path / "a")
    classes = {"labels": ("sad", "merry"), "nsp_head": False}
    ours = ph.build(origin.config.model_copy(update=classes), seed=1).eval()
    said = load_init_weights(ours, origin)
    assert "; new: classifier; unused: " in said
    assert named_state(ours).keys() - named_state(origin.model).keys() == {
        "classifier.weight",
        "classifier.bias",
    }
    tokens = torch.randint(5, VOCABULARY, (3, 20))
    with torch.no_grad():
        theirs.classifier.load_state_dict(ours.classifier.state_dict())
        torch.testing.assert_close(ours(tokens), theirs.eval()(tokens).logits, rtol=1e-5, atol=1e-5)


def test_who_goes_on_with_the_masks_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(Case("BertConfig", FIRST, SIZES), tmp_path / "a")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 4))
    data = {"root": str(tmp_path), "train": "text.txt", "valid": "text.txt", "max_len": 40}
    recipe = {"task": "masked-lm", "init_from": str(tmp_path / "a"), "data": data,
        "out": str(tmp_path / "run"),
              "train": {"steps": 1, "max_tokens": 128}}  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
    assert "unused: follows" in "".join(capsys.readouterr())
    assert type(ph.load(tmp_path / "run").model) is MaskedLM
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    _, info = getattr(transformers, MLM).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info


def test_a_pooler_without_its_head_is_left_behind_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in files of transformers 3 that fill masks."""
    published(Case("BertConfig", MLM, SIZES), tmp_path)

    def older(tensors: dict[str, Any]) -> None:
        as_published_in_2018(tensors)
        del tensors["cls.seq_relationship.weight"], tensors["cls.seq_relationship.bias"]

    rewritten(tmp_path, older)
    assert type(ph.load(tmp_path).model) is MaskedLM
    left = "bert.pooler.dense.bias, bert.pooler.dense.weight"
    assert caplog.messages == [f"{tmp_path}: ignored tensors that this model does not have: {left}"]


def test_a_bare_encoder_that_holds_the_head_for_pairs_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published(Case("BertConfig", BARE, SIZES), tmp_path)
    more = {"cls.seq_relationship.weight": torch.ones(2, 24), "cls.seq_relationship.bias": torch.ones(2)}
    rewritten(
        tmp_path, lambda tensors: tensors.update({f"bert.{n}": tensors.pop(n) for n in [*tensors]} | more)
    )
    assert ph.load(tmp_path).config.pooling is not None
    left = "cls.seq_relationship.bias, cls.seq_relationship.weight"
    assert caplog.messages == [f"{tmp_path}: ignored tensors that this model does not have: {left}"]


def test_other_families_have_no_such_model(tmp_path: Path) -> None:
    published(Case("BertConfig", FIRST, SIZES), tmp_path)
    with pytest.raises(
        UserError, match="its model is NSPModel, expected MaskedLM or Classifier or SentenceEncoder"
    ):
        pick_family(ph.load(tmp_path).config, "roberta")
