"""Configs of the reference implementation: encoders, by family."""

from __future__ import annotations

from typing import Any, NamedTuple

MLM, CLASSES, BARE = "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModel"


class Case(NamedTuple):
    """A config of the reference implementation, the class of its models, and what is not at its default."""

    config: str
    auto: str
    sizes: dict[str, Any]


SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
         "max_position_embeddings": 40, "bos_token_id": None, "eos_token_id": None,
         "pad_token_id": 0}  # fmt: skip
ODD = {**SIZES, "hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 17}
ONE = {**SIZES, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1}
DISTIL = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 20, "max_position_embeddings": 40,
    "bos_token_id": None,
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
DEBERTA = {
    **SIZES,
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 8,
    # as deberta-v3-base
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
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
        Case("XLMRobertaConfig", CLASSES, {**SIZES, **ROBERTA, "num_labels": 1,
            "problem_type": "regression"}),
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
        Case("DistilBertConfig", MLM, {**DISTIL, **UNTIED, "dim": 30, "n_heads": 5, "n_layers": 3,
            "sinusoidal_pos_embds": True}),
        Case("DistilBertConfig", MLM, {**DISTIL, "activation": "relu"}),
        Case("DistilBertConfig", CLASSES, {**DISTIL, "dim": 12, "n_heads": 3, "n_layers": 1}),
        Case("DistilBertConfig", BARE, {**DISTIL, "activation": "relu", "hidden_dim": 33}),
    ],
    "electra": [
        Case("ElectraConfig", MLM, {**SIZES, "embedding_size": 14}),
        Case("ElectraConfig", MLM, {**ODD, "embedding_size": 45, "type_vocab_size": 3, "hidden_act": "relu",
            "layer_norm_eps": 1e-3}),
        Case("ElectraConfig", MLM, {**ONE, "embedding_size": 12, "type_vocab_size": 1}),
        Case("ElectraConfig", CLASSES, {**ODD, **NAMES, "embedding_size": 7, "hidden_act": "gelu_new"}),
        Case("ElectraConfig", CLASSES, {**SIZES, "embedding_size": 24, "num_labels": 1}),
        Case("ElectraConfig", BARE, {**ODD, "embedding_size": 8, "max_position_embeddings": 33}),
        Case("ElectraConfig", BARE, {**ONE, "embedding_size": 12}),
        Case("ElectraConfig", MLM, {**SIZES, **UNTIED, "embedding_size": 14}),
    ],
    "albert": [
        Case("AlbertConfig", MLM, {**SIZES, "embedding_size": 14}),
        Case("AlbertConfig", MLM, {**ODD, "embedding_size": 30, "type_vocab_size": 3, "hidden_act": "gelu",
            "layer_norm_eps": 1e-3}),
        Case("AlbertConfig", CLASSES, {**ODD, **NAMES, "embedding_size": 7, "hidden_act": "relu"}),
        Case("AlbertConfig", CLASSES, {**SIZES, "embedding_size": 45, "num_labels": 1}),
        Case("AlbertConfig", BARE, {**ODD, "num_hidden_layers": 30, "embedding_size": 8,
            "max_position_embeddings": 33}),
        Case("AlbertConfig", BARE, {**ONE, "embedding_size": 12, "type_vocab_size": 1}),
        Case("AlbertConfig", MLM, {**ODD, **UNTIED, "embedding_size": 14}),
    ],
    "deberta-v2": [
        Case("DebertaV2Config", MLM, DEBERTA),
        Case("DebertaV2Config", MLM, {**DEBERTA, "hidden_size": 30, "num_attention_heads": 5,
            "num_hidden_layers": 3,
                                      "position_biased_input": True, "max_relative_positions": 17,
                                      "position_buckets": 6,
                                      "type_vocab_size": 3, "layer_norm_eps": 1e-3, "pos_att_type": ["c2p"]}),
        Case("DebertaV2Config", MLM, {**DEBERTA, "position_buckets": -1, "max_relative_positions": 5,
            "norm_rel_ebd": "none",
                                      "hidden_act": "gelu_new"}),
        Case("DebertaV2Config", CLASSES, {**DEBERTA, **NAMES, "hidden_size": 30, "num_attention_heads": 3}),
        Case("DebertaV2Config", CLASSES, {**DEBERTA, "num_labels": 1, "position_buckets": -1,
            "position_biased_input": True,
                                          "pooler_hidden_act": "tanh"}),
        Case("DebertaV2Config", BARE, {**DEBERTA, "pos_att_type": "p2c", "position_buckets": 3,
            "type_vocab_size": 2}),
        Case("DebertaV2Config", BARE, {**DEBERTA, "num_attention_heads": 1, "position_biased_input": True,
                                       "norm_rel_ebd": "none", "hidden_act": "relu", "position_buckets": 15}),
        Case("DebertaV2Config", MLM, {**DEBERTA, **UNTIED, "position_biased_input": True}),
    ],
    "modernbert": [
        Case("ModernBertConfig", MLM, MODERN),
        Case("ModernBertConfig", MLM, {**MODERN, "hidden_size": 30, "num_attention_heads": 3,
            "num_hidden_layers": 5,
                                       "mlp_bias": True, "norm_bias": True, "attention_bias": True,
                                       "classifier_bias": True,
                                       "decoder_bias": False, "tie_word_embeddings": False, "norm_eps": 1e-3,
                                       "rope_parameters": THETAS, "hidden_activation": "silu"}),
        Case("ModernBertConfig", CLASSES, {**MODERN, **NAMES, "classifier_pooling": "mean",
            "global_attn_every_n_layers": 2}),
        Case("ModernBertConfig", CLASSES, {**MODERN, "classifier_pooling": "cls", "num_hidden_layers": 1,
            "mlp_bias": True}),
        Case("ModernBertConfig", BARE, {**MODERN, "local_attention": 5, "rope_parameters": THETAS,
            "layer_types": [
            "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
        Case("ModernBertConfig", BARE, {**MODERN, "layer_types": ["sliding_attention"] * 4,
            "local_attention": 1}),
        Case("ModernBertConfig", MLM, {**MODERN, "num_hidden_layers": 1, "classifier_bias": True}),
    ],
    "nomic_bert": [
        Case("NomicBertConfig", MLM, SIZES),
        Case("NomicBertConfig", MLM, {**ODD, "type_vocab_size": 3, "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-3,
                                      "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0,
                                          "factor": 3.0}}),
        Case("NomicBertConfig", MLM, {**ONE, "head_dim": 10, "type_vocab_size": 1, "rope_parameters": NEAR}),
        Case("NomicBertConfig", CLASSES, {**ODD, **NAMES, "hidden_act": "relu"}),
        Case("NomicBertConfig", CLASSES, {**SIZES, "num_labels": 1, "rope_parameters": NEAR}),
        Case("NomicBertConfig", BARE, {**SIZES, "rope_parameters": NEAR}),
        Case("NomicBertConfig", BARE, {**ODD, "hidden_act": "gelu", "max_position_embeddings": 33}),
        Case("NomicBertConfig", MLM, {**SIZES, **UNTIED, "rope_parameters": NEAR}),
    ],
    "gte": [
        Case("GteConfig", MLM, {**SIZES, "type_vocab_size": 1}),
        Case("GteConfig", MLM, {**ODD, "type_vocab_size": 3, "hidden_act": "silu", "layer_norm_eps": 1e-3,
            "tie_word_embeddings": False,
                                "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0,
                                    "factor": 3.0}}),
        Case("GteConfig", MLM, {**ONE, "type_vocab_size": 0, "rope_parameters": NEAR}),
        Case("GteConfig", CLASSES, {**ODD, **NAMES, "type_vocab_size": 0, "hidden_act": "sigmoid"}),
        Case("GteConfig", CLASSES, {**SIZES, "type_vocab_size": 1, "num_labels": 1, "rope_parameters": NEAR}),
        Case("GteConfig", BARE, {**SIZES, "type_vocab_size": 2, "rope_parameters": NEAR}),
        Case("GteConfig", BARE, {**ODD, "type_vocab_size": 0, "hidden_act": "gelu_new",
            "max_position_embeddings": 33}),
    ],
    "eurobert": [
        Case("EuroBertConfig", MLM, SIZES),
        Case("EuroBertConfig", MLM, {**ODD, "num_key_value_heads": 1, "tie_word_embeddings": True,
            "mlp_bias": True,
                                     "attention_bias": True, "rms_norm_eps": 1e-3,
                                     "classifier_pooling": "mean",
                                     "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0,
                                         "factor": 3.0}}),
        Case("EuroBertConfig", MLM, {**ONE, "head_dim": 6, "hidden_act": "gelu",
            "classifier_pooling": "bos"}),
        Case("EuroBertConfig", CLASSES, {**ODD, **NAMES, "classifier_pooling": "late",
            "rope_parameters": NEAR}),
        Case("EuroBertConfig", CLASSES, {**SIZES, "num_key_value_heads": 2, "classifier_pooling": "mean",
            "mlp_bias": True}),
        Case("EuroBertConfig", CLASSES, {**ONE, "num_labels": 1, "classifier_pooling": "bos"}),
        Case("EuroBertConfig", BARE, {**SIZES, "rope_parameters": NEAR}),
        Case("EuroBertConfig", BARE, {**ODD, "num_key_value_heads": 1, "mlp_bias": True,
            "max_position_embeddings": 33}),
    ],
}  # fmt: skip
