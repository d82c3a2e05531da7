"""Every family of encoders against the reference implementation: the same logits, vectors and files, labels and roles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from torch import Tensor

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.hf import save
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import load_model, to_model_config
from polyhead.hf.save import pick_family
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

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
MP = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
MODERN = {
    **SIZES,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "local_attention": 6,
    "cls_token_id": None,
    "sep_token_id": None,
}
DEBERTA = {**SIZES, "relative_attention": True, "share_att_key": True, "pos_att_type": "p2c|c2p", "position_buckets": 8,
           "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0}  # as deberta-v3-base  # fmt: skip
NAMES = {"id2label": {0: "sad", 1: "merry", 2: "neither"}, "label2id": {"sad": 0, "merry": 1, "neither": 2}}
UNTIED = {"tie_word_embeddings": False}
NEAR = {"rope_type": "default", "rope_theta": 50.0}
THETAS = {"full_attention": {"rope_type": "default", "rope_theta": 500.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}  # fmt: skip
CASES = {
    "bert": [
        Case("BertConfig", MLM, SIZES),
        Case("BertConfig", MLM, {**ODD, "type_vocab_size": 3, "layer_norm_eps": 1e-3}),
        Case("BertConfig", MLM, {**ONE, "hidden_act": "gelu_new"}),
        Case("BertConfig", CLASSES, {**ONE, **NAMES, "hidden_act": "gelu_new"}),
        Case("BertConfig", CLASSES, {**SIZES, "num_labels": 1}),
        Case("BertConfig", BARE, {**ODD, "hidden_act": "relu", "max_position_embeddings": 33}),
        Case("BertConfig", MLM, {**ODD, **UNTIED}),
    ],
    "roberta": [
        Case("RobertaConfig", MLM, {**SIZES, **ROBERTA}),
        Case("RobertaConfig", MLM, {**ONE, **ROBERTA, "type_vocab_size": 2, "hidden_act": "relu"}),
        Case("RobertaConfig", CLASSES, {**ODD, **ROBERTA, **NAMES, "layer_norm_eps": 1e-5}),
        Case("RobertaConfig", BARE, {**SIZES, **ROBERTA, "hidden_act": "silu"}),
        Case("RobertaConfig", MLM, {**ODD, **ROBERTA, **UNTIED}),
    ],
    "xlm-roberta": [
        Case("XLMRobertaConfig", MLM, {**ODD, **ROBERTA}),
        Case("XLMRobertaConfig", CLASSES, {**SIZES, **ROBERTA, **NAMES}),
        Case("XLMRobertaConfig", CLASSES, {**SIZES, **ROBERTA, "num_labels": 1, "problem_type": "regression"}),
        Case("XLMRobertaConfig", BARE, {**ONE, **ROBERTA, "hidden_act": "relu"}),
        Case("XLMRobertaConfig", MLM, {**SIZES, **ROBERTA, **UNTIED}),
    ],
    "camembert": [
        Case("CamembertConfig", MLM, {**ODD, **ROBERTA}),
        Case("CamembertConfig", CLASSES, {**SIZES, **ROBERTA, **NAMES, "layer_norm_eps": 1e-5}),
        Case("CamembertConfig", BARE, {**ONE, **ROBERTA, "hidden_act": "relu"}),
        Case("CamembertConfig", MLM, {**ONE, **ROBERTA, **UNTIED}),
    ],
    "mpnet": [
        Case("MPNetConfig", MLM, {**SIZES, **MP}),
        Case("MPNetConfig", CLASSES, {**ODD, **MP, **NAMES, "layer_norm_eps": 1e-5}),
        Case("MPNetConfig", BARE, {**ONE, **MP, "num_hidden_layers": 3, "hidden_act": "relu"}),
        Case("MPNetConfig", MLM, {**ODD, **MP, **UNTIED}),
    ],
    "distilbert": [
        Case("DistilBertConfig", MLM, DISTIL),
        Case("DistilBertConfig", MLM, {**DISTIL, **UNTIED, "dim": 30, "n_heads": 5, "n_layers": 3, "sinusoidal_pos_embds": True}),
        Case("DistilBertConfig", MLM, {**DISTIL, "activation": "relu"}),
        Case("DistilBertConfig", CLASSES, {**DISTIL, "dim": 12, "n_heads": 3, "n_layers": 1}),
        Case("DistilBertConfig", BARE, {**DISTIL, "activation": "relu", "hidden_dim": 33}),
    ],
    "electra": [
        Case("ElectraConfig", MLM, {**SIZES, "embedding_size": 14}),
        Case("ElectraConfig", MLM, {**ODD, "embedding_size": 45, "type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
        Case("ElectraConfig", MLM, {**ONE, "embedding_size": 12, "type_vocab_size": 1}),
        Case("ElectraConfig", CLASSES, {**ODD, **NAMES, "embedding_size": 7, "hidden_act": "gelu_new"}),
        Case("ElectraConfig", CLASSES, {**SIZES, "embedding_size": 24, "num_labels": 1}),
        Case("ElectraConfig", BARE, {**ODD, "embedding_size": 8, "max_position_embeddings": 33}),
        Case("ElectraConfig", BARE, {**ONE, "embedding_size": 12}),
        Case("ElectraConfig", MLM, {**SIZES, **UNTIED, "embedding_size": 14}),
    ],
    "albert": [
        Case("AlbertConfig", MLM, {**SIZES, "embedding_size": 14}),
        Case("AlbertConfig", MLM, {**ODD, "embedding_size": 30, "type_vocab_size": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-3}),
        Case("AlbertConfig", CLASSES, {**ODD, **NAMES, "embedding_size": 7, "hidden_act": "relu"}),
        Case("AlbertConfig", CLASSES, {**SIZES, "embedding_size": 45, "num_labels": 1}),
        Case("AlbertConfig", BARE, {**ODD, "num_hidden_layers": 30, "embedding_size": 8, "max_position_embeddings": 33}),
        Case("AlbertConfig", BARE, {**ONE, "embedding_size": 12, "type_vocab_size": 1}),
        Case("AlbertConfig", MLM, {**ODD, **UNTIED, "embedding_size": 14}),
    ],
    "deberta-v2": [
        Case("DebertaV2Config", MLM, DEBERTA),
        Case("DebertaV2Config", MLM, {**DEBERTA, "hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 3,
                                      "position_biased_input": True, "max_relative_positions": 17, "position_buckets": 6,
                                      "type_vocab_size": 3, "layer_norm_eps": 1e-3, "pos_att_type": ["c2p"]}),
        Case("DebertaV2Config", MLM, {**DEBERTA, "position_buckets": -1, "max_relative_positions": 5, "norm_rel_ebd": "none",
                                      "hidden_act": "gelu_new"}),
        Case("DebertaV2Config", CLASSES, {**DEBERTA, **NAMES, "hidden_size": 30, "num_attention_heads": 3}),
        Case("DebertaV2Config", CLASSES, {**DEBERTA, "num_labels": 1, "position_buckets": -1, "position_biased_input": True,
                                          "pooler_hidden_act": "tanh"}),
        Case("DebertaV2Config", BARE, {**DEBERTA, "pos_att_type": "p2c", "position_buckets": 3, "type_vocab_size": 2}),
        Case("DebertaV2Config", BARE, {**DEBERTA, "num_attention_heads": 1, "position_biased_input": True,
                                       "norm_rel_ebd": "none", "hidden_act": "relu", "position_buckets": 15}),
        Case("DebertaV2Config", MLM, {**DEBERTA, **UNTIED, "position_biased_input": True}),
    ],
    "modernbert": [
        Case("ModernBertConfig", MLM, MODERN),
        Case("ModernBertConfig", MLM, {**MODERN, "hidden_size": 30, "num_attention_heads": 3, "num_hidden_layers": 5,
                                       "mlp_bias": True, "norm_bias": True, "attention_bias": True, "classifier_bias": True,
                                       "decoder_bias": False, "tie_word_embeddings": False, "norm_eps": 1e-3,
                                       "rope_parameters": THETAS, "hidden_activation": "silu"}),
        Case("ModernBertConfig", CLASSES, {**MODERN, **NAMES, "classifier_pooling": "mean", "global_attn_every_n_layers": 2}),
        Case("ModernBertConfig", CLASSES, {**MODERN, "classifier_pooling": "cls", "num_hidden_layers": 1, "mlp_bias": True}),
        Case("ModernBertConfig", BARE, {**MODERN, "local_attention": 5, "rope_parameters": THETAS, "layer_types": [
            "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
        Case("ModernBertConfig", BARE, {**MODERN, "layer_types": ["sliding_attention"] * 4, "local_attention": 1}),
        Case("ModernBertConfig", MLM, {**MODERN, "num_hidden_layers": 1, "classifier_bias": True}),
    ],
    "nomic_bert": [
        Case("NomicBertConfig", MLM, SIZES),
        Case("NomicBertConfig", MLM, {**ODD, "type_vocab_size": 3, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3,
                                      "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}}),
        Case("NomicBertConfig", MLM, {**ONE, "head_dim": 10, "type_vocab_size": 1, "rope_parameters": NEAR}),
        Case("NomicBertConfig", CLASSES, {**ODD, **NAMES, "hidden_act": "relu"}),
        Case("NomicBertConfig", CLASSES, {**SIZES, "num_labels": 1, "rope_parameters": NEAR}),
        Case("NomicBertConfig", BARE, {**SIZES, "rope_parameters": NEAR}),
        Case("NomicBertConfig", BARE, {**ODD, "hidden_act": "gelu", "max_position_embeddings": 33}),
        Case("NomicBertConfig", MLM, {**SIZES, **UNTIED, "rope_parameters": NEAR}),
    ],
    "gte": [
        Case("GteConfig", MLM, {**SIZES, "type_vocab_size": 1}),
        Case("GteConfig", MLM, {**ODD, "type_vocab_size": 3, "hidden_act": "silu", "layer_norm_eps": 1e-3, "tie_word_embeddings": False,
                                "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}}),
        Case("GteConfig", MLM, {**ONE, "type_vocab_size": 0, "rope_parameters": NEAR}),
        Case("GteConfig", CLASSES, {**ODD, **NAMES, "type_vocab_size": 0, "hidden_act": "sigmoid"}),
        Case("GteConfig", CLASSES, {**SIZES, "type_vocab_size": 1, "num_labels": 1, "rope_parameters": NEAR}),
        Case("GteConfig", BARE, {**SIZES, "type_vocab_size": 2, "rope_parameters": NEAR}),
        Case("GteConfig", BARE, {**ODD, "type_vocab_size": 0, "hidden_act": "gelu_new", "max_position_embeddings": 33}),
    ],
    "eurobert": [
        Case("EuroBertConfig", MLM, SIZES),
        Case("EuroBertConfig", MLM, {**ODD, "num_key_value_heads": 1, "tie_word_embeddings": True, "mlp_bias": True,
                                     "attention_bias": True, "rms_norm_eps": 1e-3, "classifier_pooling": "mean",
                                     "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}}),
        Case("EuroBertConfig", MLM, {**ONE, "head_dim": 6, "hidden_act": "gelu", "classifier_pooling": "bos"}),
        Case("EuroBertConfig", CLASSES, {**ODD, **NAMES, "classifier_pooling": "late", "rope_parameters": NEAR}),
        Case("EuroBertConfig", CLASSES, {**SIZES, "num_key_value_heads": 2, "classifier_pooling": "mean", "mlp_bias": True}),
        Case("EuroBertConfig", CLASSES, {**ONE, "num_labels": 1, "classifier_pooling": "bos"}),
        Case("EuroBertConfig", BARE, {**SIZES, "rope_parameters": NEAR}),
        Case("EuroBertConfig", BARE, {**ODD, "num_key_value_heads": 1, "mlp_bias": True, "max_position_embeddings": 33}),
    ],
}  # fmt: skip
SEGMENTED = ("Bert", "Roberta", "Electra", "Albert", "Deberta", "Nomic", "Gte")
COUNTED = ("Roberta", "XLMRoberta", "Camembert", "MPNet")  # positions from that of padding on
ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]


def cls_and_sep(directory: Path, **more: Any) -> None:
    """A tokenizer as those of BERT: word pieces, [CLS] text [SEP], and a second text with [SEP] in segment 1."""
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=list(names.values()))
    )
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names, **more).save_pretrained(directory)


def s_and_s(directory: Path, **more: Any) -> None:
    """A tokenizer as that of RoBERTa: bytes, <s> text </s></s> second </s>, one segment."""
    roles = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=299, special_tokens=roles, initial_alphabet=alphabet)
    )
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
    }
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **names, unk_token="<unk>", mask_token="<mask>", **more
    ).save_pretrained(directory)


def pieces(directory: Path, **more: Any) -> None:
    """A tokenizer as that of ALBERT: unigram pieces in lower case between the roles of BERT, written another way."""
    roles = [(name, 0.0) for name in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    transformers.AlbertTokenizer(vocab=[*roles, *scored()], **more).save_pretrained(directory)


def deberta(directory: Path, **more: Any) -> None:
    """A tokenizer as that of DeBERTa-v3: the same in the case of the text, [MASK] the last of all."""
    roles = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    vocab = [*roles, *scored(), ("[MASK]", 0.0)]
    transformers.DebertaV2Tokenizer(vocab=vocab, unk_id=3, **more).save_pretrained(directory)


def scored() -> list[tuple[str, float]]:
    """The words and letters of the texts, with how likely they are."""
    words = sorted({word for text in TEXTS for word in text.split()})
    return [
        *((f"▁{word}", -3 - 0.1 * i) for i, word in enumerate(words)),
        *((letter, -6 - 0.1 * i) for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")),
    ]


def published(case: Case, directory: Path, **more: Any) -> Any:
    """The model of a case in its directory, with the tokenizer that its family has."""
    model = make(directory, case.config, auto=case.auto, **case.sizes, **more)
    inputs = ["input_ids", *["token_type_ids"] * has_segments(case), "attention_mask"]
    given = {"AlbertConfig": pieces, "DebertaV2Config": deberta}.get(case.config, cls_and_sep)
    own = s_and_s if case.config.startswith(COUNTED) else given
    own(directory, model_input_names=inputs)
    return model


def out(model: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What theirs computes: logits, or the vectors of a bare model."""
    found = model(*args, **kwargs)
    return found.logits if "logits" in found else found.last_hidden_state


def has_segments(case: Case) -> bool:
    return case.sizes.get("type_vocab_size", 2) > 1 and case.config.startswith(SEGMENTED)


@pytest.mark.parametrize("case", ALL)
def test_numbers_are_those_of_the_reference(case: Case, tmp_path: Path) -> None:
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (3, 20))
    ours = load_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), out(theirs, tokens), rtol=1e-5, atol=1e-5)
        if has_segments(case):
            segments = torch.randint(0, case.sizes.get("type_vocab_size", 2), (3, 20))
            wanted = out(theirs, tokens, token_type_ids=segments)
            torch.testing.assert_close(ours(tokens, None, segments), wanted, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(wanted, out(theirs, tokens), atol=1e-3)
        if case.auto == BARE and "pooler_output" in theirs(tokens):
            pooled = ours.get_submodule("pooler")(ours(tokens))
            torch.testing.assert_close(pooled, theirs(tokens).pooler_output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", ALL)
def test_padding_on_either_side_does_not_matter(case: Case, side: str, tmp_path: Path) -> None:
    theirs, lengths = published(case, tmp_path), torch.tensor([12, 7, 2])
    ours, place = load_model(tmp_path), torch.arange(12)
    real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
    tokens = torch.randint(5, VOCABULARY, (3, 12))
    pos = real.long().cumsum(1) - 1
    first = case.sizes["pad_token_id"] + 1 if case.config.startswith(COUNTED) else 0
    with torch.no_grad():
        found = ours(tokens, pos.masked_fill(~real, -1))
        alone = [ours(tokens[row][real[row]][None])[0] for row in range(3)]
        if case.auto == CLASSES:  # theirs reads the first place, whatever stands there
            torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-5)
            if side == "left" and case.sizes.get("classifier_pooling") not in ("mean", "late"):
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
    published(case, tmp_path / "a", dtype=name)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype]) == 0
    assert main(["import", str(tmp_path / "b"), str(tmp_path / "again")]) == 0
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    for key, own in before.items():
        # beside a head with a matrix of its own this bias is read by nobody, and written as the one that is
        tensor = before.get(key.removesuffix("bias") + "decoder.bias", own)
        assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
        assert torch.equal(tensor.view(torch.uint8), after[key].view(torch.uint8)), key


@pytest.mark.parametrize("case", ALL)
def test_from_pretrained_opens_what_was_exported(case: Case, tmp_path: Path) -> None:
    theirs, tokens = published(case, tmp_path / "a"), torch.randint(5, VOCABULARY, (2, 15))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
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


MASKED = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases) if case.auto == MLM]  # fmt: skip
POOLED = Case("ModernBertConfig", MLM, {**MODERN, "classifier_pooling": "mean"})


@pytest.mark.parametrize("case", [*MASKED, pytest.param(POOLED, id="modernbert-mean")])
def test_a_classifier_that_begins_with_masks_is_one_of_its_family(case: Case, tmp_path: Path) -> None:
    published(case, tmp_path / "a")
    lines = (f"{'merry' if i % 2 else 'sad'}\t{text}\n" for i, text in enumerate(TEXTS * 4))
    (tmp_path / "text.tsv").write_text("".join(lines))
    data = {"root": str(tmp_path), "train": "text.tsv", "valid": "text.tsv", "label": 0, "text": [1]}
    recipe = {"task": "classification", "start": str(tmp_path / "a"), "data": data, "out": str(tmp_path / "run"),
              "train": {"steps": 2, "max_tokens": 128}}  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    theirs, info = getattr(transformers, CLASSES).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    pooled = {"ModernBertConfig": "cls", "EuroBertConfig": "late"}.get(case.config)
    assert getattr(theirs.config, "classifier_pooling", None) == case.sizes.get("classifier_pooling", pooled)
    tokenizer, run = transformers.AutoTokenizer.from_pretrained(tmp_path / "b"), ph.load(tmp_path / "run")
    for text in TEXTS:
        with torch.no_grad():
            wanted = theirs.eval()(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        found = run.classify([text])[0].probabilities
        named = {theirs.config.id2label[i]: p for i, p in enumerate(wanted.tolist())}
        assert found == pytest.approx(named, abs=1e-5)


def of(name: str, number: int) -> Case:
    return CASES[name][number]


TEXT_CASES = [
    ("bert", 0),
    ("roberta", 0),
    ("distilbert", 0),
    ("modernbert", 0),
    ("electra", 0),
    ("electra", 2),
    ("albert", 0),
    ("deberta-v2", 0),
    ("nomic_bert", 0),
    ("gte", 1),
    ("eurobert", 0),
]


@pytest.mark.parametrize(("name", "number"), TEXT_CASES)
def test_masks_are_filled_as_by_the_pipeline_of_the_reference(name: str, number: int, tmp_path: Path) -> None:
    published(of(name, number), tmp_path / "a")
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    theirs: Any = transformers.pipeline("fill-mask", model=str(tmp_path / "a"))
    mask, there = theirs.tokenizer.mask_token, range(len(theirs.tokenizer))
    offered = [w for w in theirs(f"the {mask} of the sea", top_k=VOCABULARY) if w["token"] in there]
    offered = [w for w in offered if w["token"] not in theirs.tokenizer.all_special_ids][:30]
    for run in (ph.load(tmp_path / "a"), ph.load(tmp_path / "run")):
        (found,) = run.fill_mask([f"the {mask} of the sea"], top_k=30)[0]
        assert [fill.probability for fill in found] == pytest.approx(
            [w["score"] for w in offered], abs=1e-6, rel=1e-5
        )
        if name != "roberta":  # whose tokens are bytes, mostly no characters
            assert [fill.token for fill in found] == [w["token_str"].replace(" ", "␣") for w in offered]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("bert", 4),
        ("roberta", 3),
        ("distilbert", 4),
        ("modernbert", 4),
        ("bert", 3),
        ("electra", 3),
        ("electra", 5),
        ("albert", 4),
        ("deberta-v2", 5),
        ("nomic_bert", 5),
        ("gte", 6),
        ("eurobert", 7),
    ],
)
def test_vectors_are_those_of_the_reference(name: str, number: int, tmp_path: Path) -> None:
    theirs, run = published(of(name, number), tmp_path), ph.load(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS, "sea"]
    for row, text in enumerate(texts):
        with torch.no_grad():
            wanted = theirs.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(run.embed(texts)[row], wanted.mean(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(run.embed(texts, pooling="first")[row], wanted[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("bert", 3),
        ("roberta", 2),
        ("distilbert", 3),
        ("modernbert", 2),
        ("modernbert", 3),
        ("electra", 3),
        ("albert", 2),
        ("deberta-v2", 3),
        ("nomic_bert", 3),
        ("gte", 3),
        ("eurobert", 3),
        ("eurobert", 4),
    ],
)
def test_texts_and_pairs_are_classified_as_by_the_reference(name: str, number: int, tmp_path: Path) -> None:
    theirs, run = published(of(name, number), tmp_path), ph.load(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    for given in (TEXTS, pairs):
        for text, found in zip(given, run.classify(given), strict=True):
            with torch.no_grad():
                sides = (text,) if isinstance(text, str) else text
                wanted = theirs(**tokenizer(*sides, return_tensors="pt")).logits[0].softmax(-1)
            names = [theirs.config.id2label[i] for i in range(len(wanted))]
            assert list(found.probabilities) == names
            assert list(found.probabilities.values()) == pytest.approx(wanted.tolist(), abs=1e-5)
            assert found.label == names[int(wanted.argmax())]


def rewritten(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    found = load_file(directory / "model.safetensors")
    change(found)
    save_file(found, directory / "model.safetensors")


def edited(path: Path, without: tuple[str, ...] = (), **values: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in found.items() if key not in without} | values))


def as_published_in_2018(tensors: dict[str, Tensor]) -> None:
    """As the file of bert-base: gamma and beta, both heads, a pooler, ids of positions, tied tensors twice."""
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


HEADS = {"bert": "cls.predictions", "roberta": "lm_head", "mpnet": "lm_head", "albert": "predictions", "deberta-v2": "cls.predictions"}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_its_own_may_have_its_bias_once(name: str, tmp_path: Path) -> None:
    """As files of transformers 4 have it, which tied the bias whatever was said of the matrix."""
    theirs, tokens = published(of(name, -1), tmp_path), torch.randint(5, VOCABULARY, (2, 9))
    first, second = f"{HEADS[name]}.bias", f"{HEADS[name]}.decoder.bias"
    rewritten(tmp_path, lambda tensors: tensors.update({first: tensors.pop(second)}))
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path)(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_the_first_head_of_deberta_is_tied_whatever_is_said(tmp_path: Path) -> None:
    theirs = published(Case("DebertaV2Config", MLM, {**DEBERTA, **UNTIED, "legacy": False}), tmp_path)
    tokens = torch.randint(5, VOCABULARY, (2, 9))
    ours = load_model(tmp_path)
    assert ours.config.tie_embeddings == "all"
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_the_roles_of_roberta_are_known_where_its_files_say_nothing(tmp_path: Path) -> None:
    published(of("roberta", 0), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    found = ph.load(tmp_path).tokenizer
    assert (found.bos_id, found.pad_id, found.eos_id, found.unk_id, found.mask_id) == (0, 1, 2, 3, 4)


def test_the_roles_of_albert_are_known_where_its_files_say_nothing(tmp_path: Path) -> None:
    published(of("albert", 0), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    found = ph.load(tmp_path).tokenizer
    assert (found.pad_id, found.unk_id, found.bos_id, found.eos_id, found.mask_id) == (0, 1, 2, 3, 4)


def test_a_tied_bias_that_differs_is_refused(tmp_path: Path) -> None:
    published(of("bert", 0), tmp_path)
    rewritten(tmp_path, as_published_in_2018)
    rewritten(tmp_path, lambda tensors: tensors["cls.predictions.decoder.bias"].add_(1))
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.bias is not cls\.predictions\.bias"):
        load_model(tmp_path)


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


def test_files_as_deberta_was_published_are_the_same(tmp_path: Path) -> None:
    """As deberta-v3-base: a head by its first name, that of the discriminator, a table of positions that nobody reads."""
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
    recipe = {"task": "classification", "start": str(tmp_path / "a"), "data": data, "train": {"steps": 1, "max_tokens": 128}}  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    pooling = "model.pooling={name: first, activation: gelu}"
    for name, more in (("plain", []), ("run", [pooling])):
        assert main(["train", str(tmp_path / "recipe.yaml"), f"out={tmp_path / name}", *more]) == 0
    assert main(["export", str(tmp_path / "plain"), str(tmp_path / "c"), "--family", "electra"]) == 2
    said = "this model is none of that family: activation of pooling 'first' is 'tanh', there 'gelu'"
    assert said in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    theirs, info = getattr(transformers, CLASSES).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    tokenizer, run = transformers.AutoTokenizer.from_pretrained(tmp_path / "b"), ph.load(tmp_path / "run")
    with torch.no_grad():
        wanted = theirs.eval()(**tokenizer(TEXTS[0], return_tensors="pt")).logits.softmax(-1)[0].tolist()
    found = run.classify([TEXTS[0]])[0].probabilities
    assert found == pytest.approx({theirs.config.id2label[i]: p for i, p in enumerate(wanted)}, abs=1e-5)


@pytest.mark.parametrize("name", ["electra", "albert", "deberta-v2", "nomic_bert", "gte"])
def test_sizes_that_a_config_does_not_say_are_those_of_the_reference(name: str) -> None:
    theirs = transformers.AutoConfig.for_model(name)
    wanted = ("relative_attention", "share_att_key", "pos_att_type") if name == "deberta-v2" else ()
    ours = to_model_config(
        FAMILY.get(name), ConfigReader({"model_type": name, **{key: DEBERTA[key] for key in wanted}}, name)
    )
    assert (ours.d_model, ours.d_embedding, ours.d_ff) == (
        theirs.hidden_size,
        getattr(theirs, "embedding_size", None),
        theirs.intermediate_size,
    )
    assert (ours.n_layers, ours.n_heads, ours.vocab_size, ours.max_len, ours.segments) == (
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        theirs.vocab_size,
        theirs.max_position_embeddings,
        theirs.type_vocab_size,
    )
    theta = (getattr(theirs, "rope_parameters", None) or {}).get("rope_theta")
    assert ours.position.options.get("theta") == theta


def test_a_bare_mpnet_may_say_that_it_fills_masks(tmp_path: Path) -> None:
    """As all-mpnet-base-v2 does, whose files hold no head; a masked one that lost a part of its head is still told."""
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


FIRST_KEYS: dict[str, Any] = {
    "activation_function": "swiglu", "attn_pdrop": 0.0, "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
    "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "fused_bias_fc": True, "max_trained_positions": 2048,
    "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "qkv_proj_bias": False, "resid_pdrop": 0.0,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_weights": True, "summary_type": "cls_index", "use_flash_attn": True, "use_rms_norm": False,
}  # fmt: skip
OF_TODAY = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon", "max_position_embeddings": "n_positions"}  # fmt: skip


@pytest.mark.parametrize("beside", [False, True])
def test_the_keys_of_the_first_code_of_nomic_bert_say_the_same(beside: bool, tmp_path: Path) -> None:
    """Alone, or beside those of today as the hub has them."""
    case = Case("NomicBertConfig", BARE, {**ODD, "rope_parameters": NEAR, "layer_norm_eps": 1e-3})
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (2, 19))
    now, said = load_model(tmp_path).config, json.loads((tmp_path / "config.json").read_text())
    old = FIRST_KEYS | {first: said[today] for today, first in OF_TODAY.items()} | {"rotary_emb_base": 50}
    more = (
        "hidden_act",
        "rope_parameters",
        "head_dim",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    )
    edited(tmp_path / "config.json", () if beside else (*OF_TODAY, *more), **old)
    found = load_model(tmp_path)
    assert found.config == now
    with torch.no_grad():
        torch.testing.assert_close(found(tokens), out(theirs, tokens), rtol=1e-5, atol=1e-5)
    if not beside:
        edited(tmp_path / "config.json", n_positions=64, max_position_embeddings=40)
        assert load_model(tmp_path).config.max_len == 64


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_the_config_of_an_older_modernbert_says_the_same(every: int, tmp_path: Path) -> None:
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(4)]
    case = Case("ModernBertConfig", MLM, {**MODERN, "layer_types": kinds, "rope_parameters": THETAS})
    theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (2, 19))
    now = load_model(tmp_path).config
    old = {"global_attn_every_n_layers": every, "global_rope_theta": 500.0, "local_rope_theta": 50.0, "layer_norm_eps": 1e-5,
           "position_embedding_type": "absolute", "reference_compile": None, "repad_logits_with_grad": False}  # fmt: skip
    edited(tmp_path / "config.json", ("layer_types", "rope_parameters"), **old)
    found = load_model(tmp_path)
    assert found.config == now
    with torch.no_grad():
        torch.testing.assert_close(found(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)
        again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(tokens).logits
        torch.testing.assert_close(found(tokens), again, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "number", "values", "message"),
    [
        ("bert", 0, {"architectures": ["BertForTokenClassification"]}, "architectures is ['BertForTokenClassification'], wanted one"),
        ("bert", 0, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key', wanted 'absolute'"),
        ("bert", 0, {"is_decoder": True}, "is_decoder is true, wanted false"),
        ("bert", 0, {"tie_word_embeddings": False}, "missing: cls.predictions.decoder.weight"),
        ("bert", 3, {"id2label": {"0": "a", "2": "b"}}, "id2label is {'0': 'a', '2': 'b'}, wanted an object of names"),
        ("bert", 3, {"id2label": {"0": "a", "1": "a"}}, "two of the labels are the same"),
        ("bert", 3, {"problem_type": "multi_label_classification"}, "problem_type is 'multi_label_classification', wanted"),
        ("mpnet", 0, {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64, wanted 32, all that is built"),
        ("mpnet", 0, {"pad_token_id": 0}, "pad_token_id is 0, wanted 1, all that is built"),
        ("mpnet", 0, {"max_position_embeddings": 2}, "max_position_embeddings is 2, wanted more than 2"),
        ("electra", 0, {"embedding_size": 13}, "electra.embeddings.word_embeddings.weight [300, 14], wanted [300, 13]"),
        ("albert", 0, {"num_hidden_groups": 2}, "num_hidden_groups is 2, wanted 1, all that is built"),
        ("albert", 0, {"inner_group_num": 3}, "inner_group_num is 3, wanted 1, all that is built"),
        ("deberta-v2", 0, {"conv_kernel_size": 3}, "conv_kernel_size is 3, wanted 0, all that is built"),
        ("deberta-v2", 0, {"share_att_key": False}, "share_att_key is false, wanted true, all that is built"),
        ("deberta-v2", 0, {"share_att_key": None}, "share_att_key is null, wanted true, all that is built"),
        ("deberta-v2", 0, {"relative_attention": False}, "relative_attention is false, wanted true, all that is built"),
        ("deberta-v2", 0, {"pos_att_type": "p2p|c2p"}, "pos_att_type is 'p2p|c2p', wanted 'p2c|c2p' or one of the two"),
        ("deberta-v2", 0, {"pos_att_type": [1]}, "pos_att_type is [1], wanted 'p2c|c2p'"),
        ("deberta-v2", 0, {"embedding_size": 12}, "embedding_size is 12, wanted 24, all that is built"),
        ("deberta-v2", 0, {"attention_head_size": 12}, "attention_head_size is 12, wanted 6, all that is built"),
        ("deberta-v2", 0, {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd is 'batch_norm', wanted one of none, layer_norm"),
        ("deberta-v2", 0, {"position_buckets": 2.5}, "position_buckets is 2.5, wanted a whole number from -1 to 16777216"),
        ("deberta-v2", 0, {"max_relative_positions": 5}, "max_distance of disentangled is 5; a span of 8 tells all distances up to 4"),
        ("roberta", 0, {"pad_token_id": 39}, "pad_token_id is 39, wanted the id of the padding token"),
        ("nomic_bert", 0, {"hidden_act": "tanh"}, "hidden_act is 'tanh', wanted one of"),
        ("nomic_bert", 0, {"activation_function": "gelu"}, "activation_function is 'gelu', wanted 'swiglu'"),
        ("nomic_bert", 0, {"rotary_emb_fraction": 0.0}, "rotary_emb_fraction is 0.0, wanted 1.0, all that is built"),
        ("nomic_bert", 0, {"rotary_scaling_factor": 2}, "'rotary_scaling_factor' not known for this family"),
        ("nomic_bert", 0, {"num_experts": 8, "moe_top_k": 2}, "'moe_top_k', 'num_experts' not known for this family"),
        ("nomic_bert", 0, {"qkv_proj_bias": True}, "qkv_proj_bias is true, wanted false, all that is built"),
        ("nomic_bert", 0, {"prenorm": True}, "prenorm is true, wanted false, all that is built"),
        ("nomic_bert", 0, {"n_embd": "wide", "hidden_size": None}, "hidden_size is 'wide', wanted a whole number"),
        ("nomic_bert", 0, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic', wanted one of"),
        ("gte", 0, {"hidden_act": "tanh"}, "hidden_act is 'tanh', wanted one of"),
        ("gte", 0, {"type_vocab_size": -1}, "type_vocab_size is -1, wanted a whole number from 0 to 16777216"),
        ("gte", 0, {"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute', wanted 'rope'"),
        ("gte", 0, {"layer_norm_type": "rms_norm"}, "layer_norm_type is 'rms_norm', wanted 'layer_norm', all that is built"),
        ("gte", 0, {"logn_attention_scale": True}, "logn_attention_scale is true, wanted false, all that is built"),
        ("gte", 0, {"pack_qkv": False}, "pack_qkv is false, wanted true, all that is built"),
        ("gte", 0, {"head_dim": 12}, "'head_dim' not known for this family"),
        ("gte", 0, {"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_scaling: type is 'ntk', wanted one of default"),
        ("eurobert", 0, {"classifier_pooling": "max"}, "classifier_pooling is 'max', wanted one of late, mean, bos"),
        ("eurobert", 0, {"clf_pooling": "mean"}, "clf_pooling is 'mean', wanted 'late', all that is built"),
        ("eurobert", 0, {"hidden_act": "tanh"}, "hidden_act is 'tanh', wanted one of"),
        ("eurobert", 0, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic', wanted one of"),
        ("eurobert", 0, {"architectures": ["EuroBertForTokenClassification"]}, "wanted one of EuroBertForMaskedLM, EuroBertForSequence"),
        ("modernbert", 0, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], wanted"),
        ("modernbert", 0, {"classifier_activation": "relu"}, "classifier_activation is 'relu', wanted one of gelu"),
        ("modernbert", 0, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn', wanted one of default"),
    ],
)  # fmt: skip
def test_what_is_not_built_is_refused(
    name: str, number: int, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    published(of(name, number), tmp_path)
    edited(tmp_path / "config.json", **values)
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


LIKE_BERT = {
    "kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32, "position": "learned", "segments": 2,
    "embedding_norm": True, "feed_forward": "gelu", "scale_embedding": False, "head_bias": True,
}  # fmt: skip
LIKE_ALBERT = LIKE_BERT | {"d_embedding": 10, "share_layers": True, "feed_forward": {"name": "gelu", "tanh": True},
                           "head_activation": "gelu_tanh"}  # fmt: skip
VECTORS = {"name": "disentangled", "span": 6, "max_distance": 20, "norm_eps": 1e-5}
LIKE_DEBERTA = LIKE_BERT | {"segments": 0, "position": VECTORS}
WINDOWED = {
    "attention": {"name": "softmax", "bias": False, "window": 4},
    "position": {"name": "rope", "theta": 100.0},
}
LIKE_MODERNBERT = {
    "kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 3, "max_len": 32, "position": "rope", "pattern": [{}, WINDOWED],
    "attention": {"name": "softmax", "bias": False}, "embedding_norm": "first", "norm": {"name": "layernorm", "bias": False},
    "norm_first": True, "feed_forward": "geglu", "scale_embedding": False,
}  # fmt: skip
LIKE_NOMIC = LIKE_BERT | {
    "position": {"name": "rope", "theta": 1000.0}, "attention": {"name": "softmax", "bias": False}, "feed_forward": "swiglu",
    "head_activation": "silu", "map_bias": True,
}  # fmt: skip
LIKE_EUROBERT = {
    "kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32, "position": "rope", "norm": "rmsnorm",
    "norm_first": True, "attention": {"name": "softmax", "bias": False}, "feed_forward": "swiglu", "scale_embedding": False,
    "head_activation": "none",
}  # fmt: skip
LIKE_GTE = LIKE_NOMIC | {
    "attention": "softmax", "feed_forward": {"name": "geglu", "bias": "down"}, "head_activation": "gelu", "map_bias": None,
}  # fmt: skip
OWN = [
    ("bert", MLM, LIKE_BERT),
    ("bert", CLASSES, LIKE_BERT | {"labels": ("a", "b", "c"), "head_bias": False, "map_bias": True}),
    ("bert", BARE, LIKE_BERT | {"head": False, "pooling": "first"}),
    ("bert", MLM, LIKE_BERT | {"tie_embeddings": "none"}),
    ("roberta", MLM, LIKE_BERT | {"position": {"name": "learned", "offset": 1}}),
    ("distilbert", MLM, LIKE_BERT | {"segments": 0, "norm": {"name": "layernorm", "eps": 1e-12}, "tie_embeddings": "none"}),
    ("electra", MLM, LIKE_BERT | {"d_embedding": 10}),
    ("electra", CLASSES, LIKE_BERT | {"d_embedding": 30, "labels": ("a", "b"), "pooling": {"name": "first", "activation": "gelu"}}),
    ("electra", BARE, LIKE_BERT | {"head": False, "map_bias": False}),
    ("albert", MLM, LIKE_ALBERT),
    ("albert", CLASSES, LIKE_ALBERT | {"labels": ("a", "b"), "head_activation": "gelu"}),
    ("albert", BARE, LIKE_ALBERT | {"head": False, "pooling": "first"}),
    ("deberta-v2", MLM, LIKE_DEBERTA),
    ("deberta-v2", MLM, LIKE_DEBERTA | {"position": {"name": "disentangled", "span": 9, "max_distance": None, "norm_eps": None}}),
    ("deberta-v2", CLASSES, LIKE_DEBERTA | {"labels": ("a", "b"), "segments": 2}),
    ("deberta-v2", CLASSES, LIKE_DEBERTA | {"labels": ("a",), "pooling": {"name": "first", "activation": "gelu"}}),
    ("deberta-v2", BARE, LIKE_DEBERTA | {"head": False, "position": "learned", "pattern": [{"position": VECTORS}]}),
    ("modernbert", MLM, LIKE_MODERNBERT),
    ("modernbert", CLASSES, LIKE_MODERNBERT | {"labels": ("a", "b"),
                                               "pooling": {"name": "mean", "activation": "gelu", "norm": True}}),
    ("modernbert", MLM, LIKE_MODERNBERT | {"map_bias": True, "head_bias": True}),
    ("gte", MLM, LIKE_GTE | {"segments": 0}),
    ("gte", MLM, LIKE_GTE | {"tie_embeddings": "none"}),
    ("gte", CLASSES, LIKE_GTE | {"labels": ("a", "b"), "feed_forward": {"name": "swiglu", "bias": "down"}}),
    ("gte", BARE, LIKE_GTE | {"head": False}),
    ("nomic_bert", MLM, LIKE_NOMIC),
    ("nomic_bert", CLASSES, LIKE_NOMIC | {"labels": ("a", "b"), "feed_forward": "geglu"}),
    ("nomic_bert", BARE, LIKE_NOMIC | {"head": False, "head_dim": 6, "map_bias": None}),
    ("eurobert", MLM, LIKE_EUROBERT),
    ("eurobert", CLASSES, LIKE_EUROBERT | {"labels": ("a", "b"), "map_bias": True,
                                           "pooling": {"name": "mean", "activation": "gelu", "map_first": True}}),
    ("eurobert", BARE, LIKE_EUROBERT | {"head": False, "n_kv_heads": 1}),
]  # fmt: skip


def own(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({"vocab_size": VOCABULARY, **changes})


def test_what_a_classifier_has_no_use_for_is_not_in_the_way() -> None:
    found = own(**LIKE_BERT | {"labels": ("a", "b"), "feed_forward": "relu", "head_activation": "silu"})
    assert pick_family(found) == "bert"


@pytest.mark.parametrize(("family", "auto", "parts"), OWN)
def test_an_encoder_trained_here_is_opened_by_the_reference(
    family: str, auto: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    model = build(own(**parts), seed=1)
    assert pick_family(model.config) == family
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    Run(model, train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), GenerationConfig()).save(
        tmp_path / "run"
    )
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    theirs, info = getattr(transformers, auto).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    run, tokenizer = ph.load(tmp_path / "run"), transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    # the same tokens stand around texts there and here
    given = tokenizer(TEXTS[0], TEXTS[1], return_tensors="pt")
    encoded = run.tokenizer.encode(TEXTS[:2])
    assert given["input_ids"][0].tolist() == [1, *encoded[0], 2, *encoded[1], 2]
    segments = given.get("token_type_ids")
    assert (segments is None) == (run.config.segments == 0)
    assert segments is None or segments[0].tolist() == [0] * (len(encoded[0]) + 2) + [1] * (
        len(encoded[1]) + 1
    )
    with torch.no_grad():
        found = model.eval()(given["input_ids"], None, segments)
        torch.testing.assert_close(found, out(theirs.eval(), **given), rtol=1e-5, atol=1e-5)
    if run.config.labels:
        assert tuple(theirs.config.id2label.values()) == run.config.labels
        there = ph.load(tmp_path / "out").classify([(TEXTS[0], TEXTS[1])])[0].probabilities
        assert there == pytest.approx(run.classify([(TEXTS[0], TEXTS[1])])[0].probabilities, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_first": True}, "norm_first is true, there false"),
        ({"segments": 0}, "segments is 0, there 1"),
        ({"head_bias": False}, "head_bias is false, there true"),
        ({"feed_forward": "relu"}, "head_activation is 'gelu', there 'relu'"),
        ({"head_activation": "gelu_tanh"}, "head_activation is 'gelu_tanh', there 'gelu'"),
        ({"d_embedding": 24}, "d_embedding is 24, there null"),
        ({"embedding_norm": False}, "embedding_norm is false, there true"),
        ({"map_bias": False}, "map_bias is false, there null"),
        ({"position": {"name": "learned", "offset": 1}}, "offset of position 'learned' is 1, there 0"),
        ({"labels": ("a", "b"), "pooling": "mean"}, "pooling is 'mean', there 'first'"),
        ({"head": False}, "pooling is null, there "),
        (
            {"kind": "decoder", "pooling": None},
            "its model is CausalLM, there MaskedLM or Classifier or SentenceEncoder",
        ),
    ],
)
def test_what_stands_in_the_way_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        pick_family(own(**(LIKE_BERT | changes)), "bert")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share_layers": False}, "share_layers is false, there true"),
        ({"d_embedding": None}, "d_embedding is null, there 24"),
        ({"head_activation": "gelu"}, "head_activation is 'gelu', there 'gelu_tanh'"),
        ({"head": False}, "pooling is null, there 'first'"),
    ],
)
def test_what_albert_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_ALBERT | changes)), "albert")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"map_bias": False}, "map_bias is false, there null"),
        ({"feed_forward": "geglu"}, "bias of feed_forward 'geglu' is false, there 'down'"),
        ({"feed_forward": {"name": "geglu", "bias": True}}, "bias of feed_forward 'geglu' is true, there 'down'"),
        ({"head_dim": 6}, "head_dim is 6, there 8"),
        ({"head_activation": "silu"}, "head_activation is 'silu', there 'gelu'"),
        ({"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}}, "scaling of position 'rope' is 'ntk', there 'none'"),
        ({"head": False, "pooling": "first"}, "pooling is 'first', there null"),
    ],
)  # fmt: skip
def test_what_gte_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_GTE | changes)), "gte")


@pytest.mark.parametrize("number", [1, 4, 6])
def test_files_as_gte_was_published_are_the_same(number: int, tmp_path: Path) -> None:
    """Their names begin with new, as those of the reference when it has read such; beside a bare one stand weights of tokens."""
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
    more = {"position_embedding_type": "rope", "pack_qkv": True, "logn_attention_scale": False, "unpad_inputs": False,
            "layer_norm_type": "layer_norm", "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}}  # fmt: skip
    edited(tmp_path / "config.json", **more)
    again, info = getattr(transformers, case.auto).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    with torch.no_grad():
        for wanted in (out(theirs, tokens), out(again.eval(), tokens)):
            torch.testing.assert_close(load_model(tmp_path)(tokens), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"map_bias": None}, "map_bias is null, there true"),
        ({"segments": 0}, "segments is 0, there 1"),
        ({"head_activation": "gelu"}, "head_activation is 'gelu', there 'silu'"),
        ({"attention": "softmax"}, "bias of attention 'softmax' is true, there false"),
        ({"position": {"name": "rope", "fraction": 0.5}}, "fraction of position 'rope' is 0.5, there 1.0"),
        ({"head": False, "pooling": "mean"}, "pooling is 'mean', there null"),
    ],
)
def test_what_nomic_bert_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_NOMIC | changes)), "nomic_bert")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_activation": "gelu"}, "head_activation is 'gelu', there 'none'"),
        ({"head_bias": True}, "head_bias is true, there false"),
        (
            {"labels": ("a", "b"), "pooling": {"name": "first", "activation": "gelu"}},
            "map_bias is null, there true",
        ),
        (
            {"labels": ("a", "b"), "pooling": "mean", "map_bias": True},
            "activation of pooling 'mean' is 'none', there 'gelu'",
        ),
        ({"head": False, "pooling": "mean"}, "pooling is 'mean', there null"),
    ],
)
def test_what_eurobert_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_EUROBERT | changes)), "eurobert")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_embedding": 24}, "d_embedding is 24, there null"),
        ({"head_activation": "relu"}, "head_activation is 'relu', there 'gelu'"),
        ({"head": False, "pooling": "first"}, "pooling is 'first', there null"),
    ],
)
def test_what_electra_has_not_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_family(own(**(LIKE_BERT | changes)), "electra")


def test_a_window_that_modernbert_has_not_is_named() -> None:
    sink = {"attention": {"name": "softmax", "bias": False, "window": 4, "sink": 1}, "position": "rope"}
    with pytest.raises(UserError, match="sink of attention 'softmax' is 1, there 0"):
        pick_family(own(**(LIKE_MODERNBERT | {"pattern": [{}, sink]})), "modernbert")


def test_roberta_counts_positions_from_its_padding_token(tmp_path: Path) -> None:
    model = build(own(**LIKE_BERT | {"position": {"name": "learned", "offset": 2}}), seed=1)
    Run(model, train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), GenerationConfig()).save(
        tmp_path / "run"
    )
    with pytest.raises(UserError, match="'roberta': its pad_token_id is 0, there 1"):
        save.build_checkpoint(model, ph.load(tmp_path / "run").tokenizer, GenerationConfig())


def test_every_family_of_encoders_has_three_shapes() -> None:
    assert CASES.keys() == {name for name in FAMILY.names() if "MaskedLM" in FAMILY.get(name).architectures}
    assert all(
        len(cases) >= 3 and {case.auto for case in cases} == {MLM, CLASSES, BARE} for cases in CASES.values()
    )
