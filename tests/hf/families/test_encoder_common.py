"""Every family of encoders against the reference implementation: the same logits, vectors and files, labels
and roles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.encoder_common_helpers import (
    LIKE_ALBERT,
    LIKE_BERT,
    LIKE_EUROBERT,
    LIKE_GTE,
    LIKE_MODERNBERT,
    LIKE_NOMIC,
    edited,
    of,
    own,
    rewritten,
)
from tests.hf.families.encoders import out, published
from tests.hf.families.encoders_cases import (
    BARE,
    CLASSES,
    DEBERTA,
    MLM,
)

import polyhead as ph
from polyhead import Choice, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import load_model, to_model_config
from polyhead.hf.save import pick_family
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

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


HEADS = {"bert": "cls.predictions", "roberta": "lm_head", "mpnet": "lm_head", "albert": "predictions",
    "deberta-v2": "cls.predictions"}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_its_own_may_have_its_bias_once(name: str, tmp_path: Path) -> None:
    """As files of transformers 4 have it, which tied the bias whatever was said of the matrix."""
    theirs, tokens = published(of(name, -1), tmp_path), torch.randint(5, VOCABULARY, (2, 9))
    first, second = f"{HEADS[name]}.bias", f"{HEADS[name]}.decoder.bias"
    rewritten(tmp_path, lambda tensors: tensors.update({first: tensors.pop(second)}))
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path)(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


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
    assert (ours.n_layers, ours.n_heads, ours.vocab_size, ours.max_len, ours.n_segments) == (
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        theirs.vocab_size,
        theirs.max_position_embeddings,
        theirs.type_vocab_size,
    )
    theta = (getattr(theirs, "rope_parameters", None) or {}).get("rope_theta")
    assert ours.position.options.get("theta") == theta


@pytest.mark.parametrize(
    ("name", "number", "values", "message"),
    [
        ("bert", 0, {"architectures": ["BertForTokenClassification"]}, "architectures is "
            "['BertForTokenClassification'], expected one"),
        ("bert", 0, {"position_embedding_type": "relative_key"}, "position_embedding_type is "
            "'relative_key', expected 'absolute'"),
        ("bert", 0, {"is_decoder": True}, "is_decoder is true, expected false"),
        ("bert", 0, {"tie_word_embeddings": False}, "missing: cls.predictions.decoder.weight"),
        ("bert", 3, {"id2label": {"0": "a", "2": "b"}}, "id2label is {'0': 'a', '2': 'b'}, expected an "
            "object with the keys"),
        ("bert", 3, {"id2label": {"0": "a", "1": "a"}}, "two labels are equal"),
        ("bert", 3, {"problem_type": "multi_label_classification"}, "problem_type is "
            "'multi_label_classification', expected"),
        ("mpnet", 0, {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64, "
            "expected 32, the only supported value"),
        ("mpnet", 0, {"pad_token_id": 0}, "pad_token_id is 0, expected 1, the only supported value"),
        ("mpnet", 0, {"max_position_embeddings": 2}, "max_position_embeddings is 2, expected more than 2"),
        ("electra", 0, {"embedding_size": 13}, "electra.embeddings.word_embeddings.weight [300, 14], "
                                               "expected [300, 13]"),
        ("albert", 0, {"num_hidden_groups": 2}, "num_hidden_groups is 2, expected 1, the only supported "
                                                "value"),
        ("albert", 0, {"inner_group_num": 3}, "inner_group_num is 3, expected 1, the only supported value"),
        ("deberta-v2", 0, {"conv_kernel_size": 3}, "conv_kernel_size is 3, expected 0, the only supported "
            "value"),
        ("deberta-v2", 0, {"share_att_key": False}, "share_att_key is false, expected true, the only "
            "supported value"),
        ("deberta-v2", 0, {"share_att_key": None}, "share_att_key is null, expected true, the only "
            "supported value"),
        ("deberta-v2", 0, {"relative_attention": False}, "relative_attention is false, expected true, the "
            "only supported value"),
        ("deberta-v2", 0, {"pos_att_type": "p2p|c2p"}, "pos_att_type is 'p2p|c2p', expected 'p2c|c2p', "
            "'p2c' or 'c2p'"),
        ("deberta-v2", 0, {"pos_att_type": [1]}, "pos_att_type is [1], expected 'p2c|c2p'"),
        ("deberta-v2", 0, {"embedding_size": 12}, "embedding_size is 12, expected 24, the only supported "
            "value"),
        ("deberta-v2", 0, {"attention_head_size": 12}, "attention_head_size is 12, expected 6, the only "
            "supported value"),
        ("deberta-v2", 0, {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd is 'batch_norm', expected one of "
            "none, layer_norm"),
        ("deberta-v2", 0, {"position_buckets": 2.5}, "position_buckets is 2.5, expected an integer from -1 "
            "to 16777216"),
        ("deberta-v2", 0, {"max_relative_positions": 5}, "max_distance of disentangled is 5; a span of 8 "
            "distinguishes all distances up to 4"),
        ("roberta", 0, {"pad_token_id": 39}, "pad_token_id is 39, expected the id of the padding token"),
        ("nomic_bert", 0, {"hidden_act": "tanh"}, "hidden_act is 'tanh', expected one of"),
        ("nomic_bert", 0, {"activation_function": "gelu"},
            "activation_function is 'gelu', expected 'swiglu'"),
        ("nomic_bert", 0, {"rotary_emb_fraction": 0.0}, "rotary_emb_fraction is 0.0, expected 1.0, the only "
            "supported value"),
        ("nomic_bert", 0, {"rotary_scaling_factor": 2}, "'rotary_scaling_factor' unknown for this family"),
        ("nomic_bert", 0, {"num_experts": 8, "moe_top_k": 2}, "'moe_top_k', 'num_experts' unknown for this "
            "family"),
        ("nomic_bert", 0, {"qkv_proj_bias": True}, "qkv_proj_bias is true, expected false, the only "
            "supported value"),
        ("nomic_bert", 0, {"prenorm": True}, "prenorm is true, expected false, the only supported value"),
        ("nomic_bert", 0, {"n_embd": "wide", "hidden_size": None}, "hidden_size is 'wide', expected an "
            "integer"),
        ("nomic_bert", 0, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type is 'dynamic', expected one of"),
        ("gte", 0, {"hidden_act": "tanh"}, "hidden_act is 'tanh', expected one of"),
        ("gte", 0, {"type_vocab_size": -1}, "type_vocab_size is -1, expected an integer from 0 to 16777216"),
        ("gte", 0, {"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute', "
            "expected 'rope'"),
        ("gte", 0, {"layer_norm_type": "rms_norm"}, "layer_norm_type is 'rms_norm', expected 'layer_norm', "
            "the only supported value"),
        ("gte", 0, {"logn_attention_scale": True}, "logn_attention_scale is true, expected false, the only "
            "supported value"),
        ("gte", 0, {"pack_qkv": False}, "pack_qkv is false, expected true, the only supported value"),
        ("gte", 0, {"head_dim": 12}, "'head_dim' unknown for this family"),
        ("gte", 0, {"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_scaling: type is 'ntk', expected "
            "one of default"),
        ("eurobert", 0, {"classifier_pooling": "max"}, "classifier_pooling is 'max', expected one of late, "
            "mean, bos"),
        ("eurobert", 0, {"clf_pooling": "mean"}, "clf_pooling is 'mean', expected 'late', the only "
                                                 "supported value"),
        ("eurobert", 0, {"hidden_act": "tanh"}, "hidden_act is 'tanh', expected one of"),
        ("eurobert", 0, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type is 'dynamic', expected one of"),
        ("eurobert", 0, {"architectures": ["EuroBertForTokenClassification"]}, "expected one of "
            "EuroBertForMaskedLM, EuroBertForSequence"),
        ("modernbert", 0, {"layer_types": ["full_attention"]}, "layer_types is ['full_attention'], expected"),
        ("modernbert", 0, {"classifier_activation": "relu"}, "classifier_activation is 'relu', expected one "
            "of gelu"),
        ("modernbert", 0, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type is 'yarn', expected one of default"),
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


VECTORS = {"name": "disentangled", "span": 6, "max_distance": 20, "norm_eps": 1e-5}
LIKE_DEBERTA = LIKE_BERT | {"n_segments": 0, "position": VECTORS}
OWN = [
    ("bert", MLM, LIKE_BERT),
    ("bert", CLASSES, LIKE_BERT | {"labels": ("a", "b", "c"), "lm_head_bias": False,
        "head_transform_bias": True}),
    ("bert", BARE, LIKE_BERT | {"lm_head": False, "pooling": "first"}),
    ("bert", MLM, LIKE_BERT | {"tie_embeddings": "none"}),
    ("roberta", MLM, LIKE_BERT | {"position": {"name": "learned", "offset": 1}}),
    ("distilbert", MLM, LIKE_BERT | {"n_segments": 0, "norm": {"name": "layernorm", "eps": 1e-12},
        "tie_embeddings": "none"}),
    ("electra", MLM, LIKE_BERT | {"d_embedding": 10}),
    ("electra", CLASSES, LIKE_BERT | {"d_embedding": 30, "labels": ("a", "b"), "pooling": {"name": "first",
        "activation": "gelu"}}),
    ("electra", BARE, LIKE_BERT | {"lm_head": False, "head_transform_bias": False}),
    ("albert", MLM, LIKE_ALBERT),
    ("albert", CLASSES, LIKE_ALBERT | {"labels": ("a", "b"), "head_transform_activation": "gelu"}),
    ("albert", BARE, LIKE_ALBERT | {"lm_head": False, "pooling": "first"}),
    ("deberta-v2", MLM, LIKE_DEBERTA),
    ("deberta-v2", MLM, LIKE_DEBERTA | {"position": {"name": "disentangled", "span": 9, "max_distance": None,
        "norm_eps": None}}),
    ("deberta-v2", CLASSES, LIKE_DEBERTA | {"labels": ("a", "b"), "n_segments": 2}),
    ("deberta-v2", CLASSES, LIKE_DEBERTA | {"labels": ("a",), "pooling": {"name": "first",
        "activation": "gelu"}}),
    ("deberta-v2", BARE, LIKE_DEBERTA | {"lm_head": False, "position": "learned",
        "layer_pattern": [{"position": VECTORS}]}),
    ("modernbert", MLM, LIKE_MODERNBERT),
    ("modernbert", CLASSES, LIKE_MODERNBERT | {"labels": ("a", "b"),
                                               "pooling": {"name": "mean", "activation": "gelu",
                                                   "norm": True}}),
    ("modernbert", MLM, LIKE_MODERNBERT | {"head_transform_bias": True, "lm_head_bias": True}),
    ("gte", MLM, LIKE_GTE | {"n_segments": 0}),
    ("gte", MLM, LIKE_GTE | {"tie_embeddings": "none"}),
    ("gte", CLASSES, LIKE_GTE | {"labels": ("a", "b"), "feed_forward": {"name": "swiglu", "bias": "down"}}),
    ("gte", BARE, LIKE_GTE | {"lm_head": False}),
    ("nomic_bert", MLM, LIKE_NOMIC),
    ("nomic_bert", CLASSES, LIKE_NOMIC | {"labels": ("a", "b"), "feed_forward": "geglu"}),
    ("nomic_bert", BARE, LIKE_NOMIC | {"lm_head": False, "head_dim": 6, "head_transform_bias": None}),
    ("eurobert", MLM, LIKE_EUROBERT),
    ("eurobert", CLASSES, LIKE_EUROBERT | {"labels": ("a", "b"), "head_transform_bias": True,
                                           "pooling": {"name": "mean", "activation": "gelu",
                                               "map_first": True}}),
    ("eurobert", BARE, LIKE_EUROBERT | {"lm_head": False, "n_kv_heads": 1}),
]  # fmt: skip


def test_what_a_classifier_has_no_use_for_is_not_in_the_way() -> None:
    found = own(
        **LIKE_BERT | {"labels": ("a", "b"), "feed_forward": "relu", "head_transform_activation": "silu"}
    )
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
    assert (segments is None) == (run.config.n_segments == 0)
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
        ({"norm_first": True}, "norm_first is true, expected false"),
        ({"n_segments": 0}, "n_segments is 0, expected 1"),
        ({"lm_head_bias": False}, "lm_head_bias is false, expected true"),
        ({"feed_forward": "relu"}, "head_transform_activation is 'gelu', expected 'relu'"),
        (
            {"head_transform_activation": "gelu_tanh"},
            "head_transform_activation is 'gelu_tanh', expected 'gelu'",
        ),
        ({"d_embedding": 24}, "d_embedding is 24, expected null"),
        ({"embedding_norm": False}, "embedding_norm is false, expected true"),
        ({"head_transform_bias": False}, "head_transform_bias is false, expected null"),
        ({"position": {"name": "learned", "offset": 1}}, "offset of position 'learned' is 1, expected 0"),
        ({"labels": ("a", "b"), "pooling": "mean"}, "pooling is 'mean', expected 'first'"),
        ({"lm_head": False}, "pooling is null, expected "),
        (
            {"kind": "decoder", "pooling": None},
            "its model is CausalLM, expected MaskedLM or Classifier or SentenceEncoder",
        ),
    ],
)
def test_what_stands_in_the_way_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        pick_family(own(**(LIKE_BERT | changes)), "bert")
    assert message in str(error.value)
