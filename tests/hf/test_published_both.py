"""config.json of encoders and encoder-decoders as it stands on the hub, key by key: every tensor of the
reference, and no other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hf.published_helpers import read
from transformers.core_model_loading import revert_weight_conversion

from polyhead.config.projection import ProjectionConfig
from polyhead.hf.family import FAMILY
from polyhead.hf.weight_map import to_hf
from polyhead.models import SentenceEncoder
from polyhead.models.build import model_class
from polyhead.nn.state import named_state

LIKE_BERT: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12, "num_hidden_layers": 12,
}  # fmt: skip
LIKE_ROBERTA = LIKE_BERT | {
    "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}  # fmt: skip
LIKE_BART: dict[str, Any] = {
    "activation_dropout": 0.0, "activation_function": "gelu", "attention_dropout": 0.0, "bos_token_id": 0,
    "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
    "decoder_layerdrop": 0.0, "decoder_layers": 12, "decoder_start_token_id": 2, "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0, "encoder_layers": 12, "eos_token_id": 2,
    "init_std": 0.02,
    "is_encoder_decoder": True, "max_position_embeddings": 1024, "num_hidden_layers": 12, "pad_token_id": 1,
}  # fmt: skip
LABELS = {
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
}
LIKE_T5: dict[str, Any] = {
    "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "pad_token_id": 0, "relative_attention_num_buck"
        "ets": 32,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "google-bert/bert-base-uncased": LIKE_BERT | {
        "architectures": ["BertForMaskedLM"], "gradient_checkpointing": False, "model_type": "bert",
            "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 30522,
    },
    "FacebookAI/roberta-base": LIKE_ROBERTA | {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "vocab_size": 50265,
    },
    "FacebookAI/xlm-roberta-base": LIKE_ROBERTA | {
        "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "output_past": True,
        "position_embedding_type": "absolute", "transformers_version": "4.17.0.dev0", "use_cache": True,
        "vocab_size": 250002,
    },
    "almanach/camembert-base": LIKE_ROBERTA | {
        "architectures": ["CamembertForMaskedLM"], "bos_token_id": 5, "eos_token_id": 6,
            "model_type": "camembert",
        "output_past": True, "vocab_size": 32005,
    },
    "microsoft/mpnet-base": {key: value for key,
        value in LIKE_ROBERTA.items() if key != "type_vocab_size"} | {
        "architectures": ["MPNetForMaskedLM"], "model_type": "mpnet", "relative_attention_num_buckets": 32,
            "vocab_size": 30527,
    },
    "microsoft/deberta-v3-base": LIKE_BERT | {
        "architectures": ["DebertaV2ForMaskedLM"], "layer_norm_eps": 1e-07, "max_relative_positions": -1,
        "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "position_buckets": 256, "relative_attention": True, "share_att_key": True, "type_vocab_size": 0,
        "vocab_size": 128100,
    },
    "distilbert/distilbert-base-uncased": {
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1,
            "dim": 768, "dropout": 0.1,
        "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
        "model_type": "distilbert", "n_heads": 12,
        "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True, "transformers_version": "4.10.0.dev0", "vocab_size": 30522,
    },
    "albert/albert-base-v2": LIKE_BERT | {
        "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
        "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3,
        "gap_size": 0,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "inner_group_num": 1, "model_type": "albert",
        "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0, "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": 30000,
    },
    "answerdotai/ModernBERT-base": {
        "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 50281,
        "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283,
        "position_embedding_type": "absolute", "sep_token_id": 50282, "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.47.0.dev0", "vocab_size": 50368,
    },
    "nomic-ai/nomic-embed-text-v1.5": {
        "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
            "bos_token_id": None,
        "auto_map": {
            "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
            "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
        },
        "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_embd": 768, "n_head": 12,
        "n_inner": 3072,
        "n_layer": 12, "n_positions": 8192, "pad_vocab_size_multiple": 64, "parallel_block": False,
        "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_att"
            "n": False,
        "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.0,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "torch_dtype": "float32",
        "transformers_version": "4.37.2",
        "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": 30528,
    },
    "alibaba-nlp-community/gte-multilingual-base": {
        "architectures": ["GteModel"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0,
            "dtype": "float16",
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02, "intermediate_size": 3072, "label2id": {"LABEL_0": 0},
            "layer_norm_eps": 1e-12,
        "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False,
        "max_position_embeddings": 8192, "model_type": "gte", "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pack_qkv": True, "pad_token_id": 1, "position_embedding_type": "rope",
        "rope_parameters": {"rope_theta": 160000.0, "rope_type": "default"}, "tie_word_embeddings": True,
        "type_vocab_size": 1, "unpad_inputs": "true", "use_memory_efficient_attention": "true",
        "vocab_size": 250048,
    },
    "google/embeddinggemma-300m": {
        "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
            "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32", "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 1152, "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 4,
        "max_position_embeddings": 2048, "model_type": "gemma3_text", "num_attention_heads": 3,
        "num_hidden_layers": 24,
        "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
        "transformers_version": "4.57.0.dev0", "use_bidirectional_attention": True, "use_cache": True,
        "vocab_size": 262144,
    },
    "google-t5/t5-small": LIKE_T5 | {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "model_type": "t5", "n_positions": 512,
            "num_heads": 8,
        "num_layers": 6, "output_past": True, "use_cache": True, "vocab_size": 32128,
        "task_specific_params": {"translation_en_to_de": {
            "early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate English to "
                "German: ",
        }},
    },
    "google/flan-t5-small": LIKE_T5 | {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 1024, "feed_forward_proj": "gated-gelu",
            "model_type": "t5",
        "n_positions": 512, "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "output_past": True,
        "relative_attention_max_distance": 128, "tie_word_embeddings": False,
        "transformers_version": "4.23.1",
        "use_cache": True, "vocab_size": 32128,
    },
    "google/mt5-small": LIKE_T5 | {
        "architectures": ["MT5ForConditionalGeneration"], "d_ff": 1024, "feed_forward_proj": "gated-gelu",
            "model_type": "mt5",
        "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "tie_word_embeddings": False,
        "tokenizer_class": "T5Tokenizer", "vocab_size": 250112,
    },
    "facebook/bart-large-cnn": LIKE_BART | LABELS | {
        "_num_labels": 3, "add_final_layer_norm": False, "architectures": ["BartForConditionalGeneration"],
        "classif_dropout": 0.0, "early_stopping": True, "force_bos_token_to_be_generated": True,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2, "gradient_checkpointing": False, "length_penalty": 2.0, "max_length": 142,
        "min_length": 56,
        "model_type": "bart", "no_repeat_ngram_size": 3, "normalize_before": False, "num_beams": 4,
        "output_past": True,
        "prefix": " ", "scale_embedding": False, "transformers_version": "4.7.0.dev0", "use_cache": True,
        "vocab_size": 50264,
        "task_specific_params": {"summarization": {
            "early_stopping": True, "length_penalty": 2.0, "max_length": 142, "min_length": 56,
            "no_repeat_ngram_size": 3,
            "num_beams": 4,
        }},
    },
    "facebook/mbart-large-50-many-to-many-mmt": LIKE_BART | LABELS | {
        "_num_labels": 3, "activation_function": "relu", "add_bias_logits": False,
        "add_final_layer_norm": True,
        "architectures": ["MBartForConditionalGeneration"], "classif_dropout": 0.0, "early_stopping": True,
        "forced_eos_token_id": 2, "gradient_checkpointing": False, "max_length": 200, "model_type": "mbart",
        "normalize_before": True, "normalize_embedding": True, "num_beams": 5, "output_past": True,
        "scale_embedding": True,
        "static_position_embeddings": False, "tokenizer_class": "MBart50Tokenizer",
        "transformers_version": "4.4.0.dev0",
        "use_cache": True, "vocab_size": 250054,
    },
    "google/pegasus-xsum": LIKE_BART | LABELS | {
        "activation_dropout": 0.1, "activation_function": "relu", "add_bias_logits": False,
        "add_final_layer_norm": True,
        "architectures": ["PegasusForConditionalGeneration"], "attention_dropout": 0.1,
            "classif_dropout": 0.0,
        "decoder_layers": 16, "decoder_start_token_id": 0, "do_blenderbot_90_layernorm": False,
        "encoder_layers": 16,
        "eos_token_id": 1, "extra_pos_embeddings": 0, "force_bos_token_to_be_generated": False,
        "forced_eos_token_id": 1,
        "gradient_checkpointing": False, "length_penalty": 0.6, "max_length": 64,
        "max_position_embeddings": 512,
        "model_type": "pegasus", "normalize_before": True, "normalize_embedding": False, "num_beams": 8,
        "num_hidden_layers": 16,
        "pad_token_id": 0, "scale_embedding": True, "static_position_embeddings": True, "vocab_size": 96103,
    },
    "Helsinki-NLP/opus-mt-en-de": LIKE_BART | LABELS | {
        "_num_labels": 3, "activation_function": "swish", "add_bias_logits": False,
        "add_final_layer_norm": False,
        "architectures": ["MarianMTModel"], "bad_words_ids": [[58100]], "classif_dropout": 0.0,
            "d_model": 512,
        "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layers": 6,
        "decoder_start_token_id": 58100,
        "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layers": 6, "eos_token_id": 0,
        "max_length": 512,
        "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False,
        "normalize_embedding": False,
        "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True,
        "static_position_embeddings": True, "vocab_size": 58101,
    },
    "facebook/m2m100_418M": LIKE_BART | {
        "activation_function": "relu", "architectures": ["M2M100ForConditionalGeneration"],
            "attention_dropout": 0.1,
        "decoder_layerdrop": 0.05, "early_stopping": True, "encoder_layerdrop": 0.05,
        "gradient_checkpointing": False,
        "max_length": 200, "model_type": "m2m_100", "num_beams": 5, "scale_embedding": True,
        "transformers_version": "4.4.0.dev0", "use_cache": True, "vocab_size": 128112,
    },
    "facebook/nllb-200-distilled-600M": LIKE_BART | {
        "activation_function": "relu", "architectures": ["M2M100ForConditionalGeneration"],
            "attention_dropout": 0.1,
        "decoder_layerdrop": 0, "encoder_layerdrop": 0, "max_length": 200, "model_type": "m2m_100",
        "scale_embedding": True,
        "tokenizer_class": "NllbTokenizer", "torch_dtype": "float32", "transformers_version": "4.21.0.dev0",
        "use_cache": True,
        "vocab_size": 256206,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_the_whole_model_has_the_tensors_of_the_reference(name: str, tmp_path: Path) -> None:
    """Of full size, where tensors take no memory: all that is learned, and nothing that the files do not
    hold.
    """
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config, family = read(CONFIGS[name]), FAMILY.get(CONFIGS[name]["model_type"])
    with torch.device("meta"):
        model = model_class(config)(config)
        own = getattr(transformers, CONFIGS[name]["architectures"][0])
        theirs = own(transformers.AutoConfig.from_pretrained(tmp_path))
    found = to_hf(family.rules_for(type(model).__name__), named_state(model), config)
    bare = family.prefix if config.kind == "encoder" and not config.lm_head else ""
    found = {key.removeprefix(bare): tuple(tensor.shape) for key, tensor in found.items()}
    learned = {key: tensor for key, tensor in theirs.named_parameters() if tensor.requires_grad}
    # as the reference writes them, which is not always what it calls them itself
    learned = revert_weight_conversion(theirs, learned)
    assert {family.tied_weights.get(key, key) for key in learned} - set(found) == set()
    stored = revert_weight_conversion(theirs, theirs.state_dict())
    assert found.items() - {(key, tuple(tensor.shape)) for key, tensor in stored.items()} == set()


@pytest.mark.parametrize(
    ("name", "tensors", "numbers"),
    [
        ("nomic-ai/nomic-embed-text-v1.5", 112, 136_731_648),
        ("alibaba-nlp-community/gte-multilingual-base", 136, 305_368_320),
    ],
)
def test_encoders_for_vectors_are_as_large_as_published(name: str, tensors: int, numbers: int) -> None:
    config, family = read(CONFIGS[name]), FAMILY.get(CONFIGS[name]["model_type"])
    with torch.device("meta"):
        found = to_hf(family.rules_for("SentenceEncoder"), named_state(SentenceEncoder(config)), config)
    assert (len(found), sum(tensor.numel() for tensor in found.values())) == (tensors, numbers)
    assert config.max_len == 8192


def test_the_parts_of_embedding_gemma_are_those_of_its_report() -> None:
    config = read(CONFIGS["google/embeddinggemma-300m"])
    assert (config.kind, config.lm_head, config.causal, config.max_len) == ("encoder", False, False, 2048)
    assert (config.kv_heads, config.head_dim, config.attention.options["scale"]) == (1, 256, None)
    windows = [parts.attention and parts.attention.options["window"] for parts in config.layer_pattern]
    thetas = [parts.position and parts.position.options["theta"] for parts in config.layer_pattern]
    assert (windows, thetas) == ([*[257] * 5, None], [*[10_000.0] * 5, None])
    assert (config.attention.options["window"], config.position.options["theta"]) == (None, 1_000_000.0)
    maps = (
        ProjectionConfig(width=3072, activation="none", bias=False),
        ProjectionConfig(width=768, activation="none", bias=False),
    )
    with torch.device("meta"):
        model = SentenceEncoder(config.model_copy(update={"dense": maps}))
    assert sum(tensor.numel() for tensor in model.parameters()) == 307_581_696
