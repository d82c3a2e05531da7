"""Every family of encoders against the reference implementation: the same logits, vectors and files, labels and roles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.errors import UserError
from polyhead.hf.reading import open_model
from polyhead.hf.writing import fitting
from polyhead.recipe import GenerationConfig
from polyhead.run import Run
from polyhead.text.tokenizer import train_tokenizer

MLM, CLASSES, BARE = "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModel"


class Case(NamedTuple):
    """A config of the reference implementation, the class of its models, and what is not at its default."""

    config: str
    auto: str
    sizes: dict[str, Any]


SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
         "max_position_embeddings": 40, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
ODD = {**SIZES, "hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 17}
ONE = {**SIZES, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1}
DISTIL = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 20, "max_position_embeddings": 40, "bos_token_id": None,
          "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
ROBERTA = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "type_vocab_size": 1}
MODERN = {**SIZES, "hidden_size": 32, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": None, "sep_token_id": None}
NAMES = {"id2label": {0: "sad", 1: "merry", 2: "neither"}, "label2id": {"sad": 0, "merry": 1, "neither": 2}}
THETAS = {"full_attention": {"rope_type": "default", "rope_theta": 500.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}  # fmt: skip
CASES = {
    "bert": [
        Case("BertConfig", MLM, SIZES),
        Case("BertConfig", MLM, {**ODD, "type_vocab_size": 3, "layer_norm_eps": 1e-3}),
        Case("BertConfig", CLASSES, {**ONE, **NAMES, "hidden_act": "gelu_new"}),
        Case("BertConfig", BARE, {**ODD, "hidden_act": "relu", "max_position_embeddings": 33}),
    ],
    "roberta": [
        Case("RobertaConfig", MLM, {**SIZES, **ROBERTA}),
        Case("RobertaConfig", MLM, {**ONE, **ROBERTA, "type_vocab_size": 2, "hidden_act": "relu"}),
        Case("RobertaConfig", CLASSES, {**ODD, **ROBERTA, **NAMES, "layer_norm_eps": 1e-5}),
        Case("RobertaConfig", BARE, {**SIZES, **ROBERTA, "hidden_act": "silu"}),
    ],
    "distilbert": [
        Case("DistilBertConfig", MLM, DISTIL),
        Case("DistilBertConfig", MLM, {**DISTIL, "dim": 30, "n_heads": 5, "n_layers": 3, "tie_word_embeddings": False,
                                       "sinusoidal_pos_embds": True}),
        Case("DistilBertConfig", CLASSES, {**DISTIL, "dim": 12, "n_heads": 3, "n_layers": 1}),
        Case("DistilBertConfig", BARE, {**DISTIL, "activation": "relu", "hidden_dim": 33}),
    ],
    "modernbert": [
        Case("ModernBertConfig", MLM, MODERN),
        Case("ModernBertConfig", MLM, {**MODERN, "hidden_size": 30, "num_attention_heads": 3, "num_hidden_layers": 5,
                                       "mlp_bias": True, "norm_bias": True, "attention_bias": True, "classifier_bias": True,
                                       "decoder_bias": False, "tie_word_embeddings": False, "norm_eps": 1e-3,
                                       "rope_parameters": THETAS, "hidden_activation": "silu"}),
        Case("ModernBertConfig", CLASSES, {**MODERN, **NAMES, "classifier_pooling": "mean", "global_attn_every_n_layers": 2}),
        Case("ModernBertConfig", CLASSES, {**MODERN, "classifier_pooling": "cls", "num_hidden_layers": 1}),
        Case("ModernBertConfig", BARE, {**MODERN, "local_attention": 5, "rope_parameters": THETAS, "layer_types": [
            "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
        Case("ModernBertConfig", BARE, {**MODERN, "layer_types": ["sliding_attention"] * 4, "local_attention": 1}),
    ],
}  # fmt: skip
ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]


def cls_and_sep(directory: Path, **more: Any) -> None:
    """A tokenizer as those of BERT: word pieces, [CLS] text [SEP], and a second text with [SEP] in segment 1."""
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=list(names.values())))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names, **more).save_pretrained(directory)


def s_and_s(directory: Path, **more: Any) -> None:
    """A tokenizer as that of RoBERTa: bytes, <s> text </s></s> second </s>, one segment."""
    roles = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=299, special_tokens=roles, initial_alphabet=alphabet))
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **names, unk_token="<unk>", mask_token="<mask>", **more
    ).save_pretrained(directory)


def published(case: Case, directory: Path, **given: Any) -> Any:
    """The model of a case in its directory, with the tokenizer that its family has."""
    model = make(directory, case.config, auto=case.auto, **case.sizes, **given)
    inputs = ["input_ids", *["token_type_ids"] * has_segments(case), "attention_mask"]
    (s_and_s if case.config == "RobertaConfig" else cls_and_sep)(directory, model_input_names=inputs)
    return model


def out(model: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What theirs computes: logits, or the vectors of a bare model."""
    found = model(*args, **kwargs)
    return found.logits if "logits" in found else found.last_hidden_state


def has_segments(case: Case) -> bool:
    return case.sizes.get("type_vocab_size", 2) > 1 and case.config in ("BertConfig", "RobertaConfig")


@pytest.mark.parametrize("case", ALL)
def test_numbers_are_those_of_the_reference(case: Case, tmp_path: Path) -> None:
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (3, 20))
    ours = open_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), out(theirs, tokens), rtol=1e-5, atol=1e-5)
        if has_segments(case):
            segments = torch.randint(0, case.sizes.get("type_vocab_size", 2), (3, 20))
            wanted = out(theirs, tokens, token_type_ids=segments)
            torch.testing.assert_close(ours(tokens, None, segments), wanted, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(wanted, out(theirs, tokens), atol=1e-3)
        if case.auto == BARE and case.config in ("BertConfig", "RobertaConfig"):
            pooled = ours.pooler(ours(tokens))
            torch.testing.assert_close(pooled, theirs(tokens).pooler_output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", ALL)
def test_padding_on_either_side_does_not_matter(case: Case, side: str, tmp_path: Path) -> None:
    theirs, lengths = published(case, tmp_path), torch.tensor([12, 7, 2])
    ours, place = open_model(tmp_path), torch.arange(12)
    real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
    tokens = torch.randint(5, VOCABULARY, (3, 12))
    pos = real.long().cumsum(1) - 1
    first = case.sizes["pad_token_id"] + 1 if case.config == "RobertaConfig" else 0
    with torch.no_grad():
        found = ours(tokens, pos.masked_fill(~real, -1))
        alone = [ours(tokens[row][real[row]][None])[0] for row in range(3)]
        if case.auto == CLASSES:  # theirs reads the first place, whatever stands there
            torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-5)
            if side == "left" and case.sizes.get("classifier_pooling") != "mean":
                return
        else:
            torch.testing.assert_close(found[real], torch.cat(alone), rtol=1e-5, atol=1e-5)
        wanted = out(theirs, tokens, attention_mask=real.long(), position_ids=pos.clamp(min=0) + first)
        if case.auto == CLASSES:
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(found[real], wanted[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", ALL)
def test_a_run_exports_to_the_very_same_tensors(case: Case, dtype: str, tmp_path: Path) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    theirs = published(case, tmp_path / "a", dtype=name)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    arguments = ["--family", theirs.config.model_type, "--dtype", dtype]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), *arguments]) == 0
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
        assert torch.equal(tensor.view(torch.uint8), after[key].view(torch.uint8)), key


@pytest.mark.parametrize("case", ALL)
def test_from_pretrained_opens_what_was_exported(case: Case, tmp_path: Path) -> None:
    theirs, tokens = published(case, tmp_path / "a"), torch.randint(5, VOCABULARY, (2, 15))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--family", theirs.config.model_type]) == 0
    again, info = getattr(transformers, case.auto).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    assert type(again) is type(theirs)
    with torch.no_grad():
        torch.testing.assert_close(out(again.eval(), tokens), out(theirs, tokens), rtol=1e-5, atol=1e-6)
    assert again.config.id2label == theirs.config.id2label
    before, after = (transformers.AutoTokenizer.from_pretrained(tmp_path / place) for place in "ab")
    for role in ("bos", "eos", "cls", "sep", "mask", "pad", "unk"):
        assert getattr(after, f"{role}_token") == getattr(before, f"{role}_token"), role
    for text in TEXTS:
        assert after(text)["input_ids"] == before(text)["input_ids"]
        assert dict(after(text, TEXTS[0])) == dict(before(text, TEXTS[0]))
    assert ("token_type_ids" in before("a")) == has_segments(case)
