"""config.json as it stands on the hub, key by key: read whole, and with small sizes against the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.hf.conftest import TEXTS, VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

import polyhead as ph
from polyhead import Choice
from polyhead.config.model import ModelConfig
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config
from polyhead.hf.weight_map import to_hf
from polyhead.models.build import model_class
from polyhead.nn.state import named_state
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
    "bos_token_id": 2, "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "sliding_window": 512, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "google/gemma-3-270m": GEMMA | {
        "_sliding_window_pattern": 6, "eos_token_id": 1, "hidden_size": 640, "intermediate_size": 2048,
        "layer_types": [*[SLIDING] * 5, FULL] * 3, "num_hidden_layers": 18, "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0, "transformers_version": "4.55.0.dev0", "use_bidirectional_attention": False,
    },
    "google/gemma-3-1b-it": GEMMA | {
        "cache_implementation": "hybrid", "eos_token_id": [1, 106], "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window_pattern": 6,
        "transformers_version": "4.50.0.dev0",
    },
    "HuggingFaceTB/SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
        "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008,
        "layer_types": [FULL] * 36, "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False,
        "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False, "use_sliding_window": False,
        "vocab_size": 128256,
    },
    "allenai/OLMo-2-0425-1B": {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
        "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.47.0", "use_cache": True,
        "vocab_size": 100352,
    },
    "ibm-granite/granite-3.1-2b-base": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.1,
        "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "logits_scaling": 8.0,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.47.0.dev0", "use_cache": True, "vocab_size": 49155,
    },
    "ibm-granite/granite-3.0-1b-a400m-base": {
        "architectures": ["GraniteMoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.1,
        "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 512, "logits_scaling": 6.0,
        "max_position_embeddings": 4096, "model_type": "granitemoe", "num_attention_heads": 16, "num_experts_per_tok": 8,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
        "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000,
        "router_aux_loss_coef": 0.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.46.0.dev0", "use_cache": True, "vocab_size": 49155,
    },
    "google/gemma-2b": {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2,
        "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0",
        "use_cache": True, "vocab_size": 256000,
    },
    "bigcode/starcoder2-3b": {
        "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1,
        "attention_softmax_in_fp32": True, "bos_token_id": 0, "embedding_dropout": 0.1, "eos_token_id": 0,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
        "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2",
        "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30,
        "num_key_value_heads": 2, "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 4096, "torch_dtype": "float32",
        "transformers_version": "4.37.0.dev0", "use_bias": True, "use_cache": True, "vocab_size": 49152,
    },
    "EleutherAI/gpt-j-6b": {
        "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "bos_token_id": 50256,
        "embd_pdrop": 0.0, "eos_token_id": 50256, "gradient_checkpointing": False, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28,
        "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64, "scale_attn_weights": True,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer", "transformers_version": "4.18.0.dev0",
        "use_cache": True, "vocab_size": 50400,
    },
    "EleutherAI/gpt-neo-125m": {
        "activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"], "attention_dropout": 0,
        "attention_layers": ["global", "local"] * 6, "attention_types": [[["global", "local"], 6]], "bos_token_id": 50256,
        "embed_dropout": 0, "eos_token_id": 50256, "gradient_checkpointing": False, "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": None, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neo",
        "num_heads": 12, "num_layers": 12, "resid_dropout": 0, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "transformers_version": "4.9.0.dev0", "use_cache": True, "vocab_size": 50257, "window_size": 256,
    },
    "allenai/Olmo-3-1025-7B": {
        "architectures": ["Olmo3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
        "layer_types": [*[SLIDING] * 3, FULL] * 8, "max_position_embeddings": 65536, "model_type": "olmo3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
        "rms_norm_eps": 1e-06, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False,
        "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                         "original_max_position_embeddings": 8192, "rope_type": "yarn"},
        "torch_dtype": "bfloat16", "transformers_version": "4.57.0", "use_cache": False, "vocab_size": 100278,
    },
    "LGAI-EXAONE/EXAONE-4.0-32B": {
        "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 361, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 27392,
        "layer_types": [*[SLIDING] * 3, FULL] * 16, "max_position_embeddings": 131072, "model_type": "exaone4",
        "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": True, "vocab_size": 102400,
    },
    "THUDM/GLM-4-9B-0414": {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329,
        "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": True, "vocab_size": 151552,
    },
    "CohereForAI/aya-expanse-8b": {
        "architectures": ["CohereForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5,
        "eos_token_id": 255001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "layer_norm_eps": 1e-05, "logit_scale": 0.125, "max_position_embeddings": 8192,
        "model_max_length": 8192, "model_type": "cohere", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pad_token_id": 0, "pretraining_tp": 1, "rope_theta": 10000, "tie_word_embeddings": True,
        "torch_dtype": "float16", "transformers_version": "4.44.0", "use_cache": True, "use_qk_norm": False, "vocab_size": 256000,
    },
    "CohereForAI/c4ai-command-r7b-12-2024": {
        "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5,
        "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
        "max_position_embeddings": 132096, "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
        "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0,
        "sliding_window": 4096, "sliding_window_pattern": 4, "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0",
        "use_cache": True, "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True,
        "use_parallel_embedding": True, "vocab_size": 256000,
    },
    "baidu/ERNIE-4.5-0.3B-PT": {
        "architectures": ["Ernie4_5ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 131072, "model_type": "ernie4_5",
        "num_attention_heads": 16, "num_hidden_layers": 18, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0.dev0", "use_bias": False, "use_cache": False, "vocab_size": 103424,
    },
    "arcee-ai/AFM-4.5B": {
        "architectures": ["ArceeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": 128001, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 2560, "initializer_range": 0.02,
        "intermediate_size": 18432, "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "arcee",
        "num_attention_heads": 20, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0,
                         "original_max_position_embeddings": 4096, "rope_type": "yarn", "type": "yarn"},
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.53.0",
        "use_cache": True, "vocab_size": 128004,
    },
    "facebook/opt-350m": {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu",
        "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": False,
        "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 4096, "hidden_size": 1024, "init_std": 0.02, "layerdrop": 0.0,
        "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 16, "num_hidden_layers": 24,
        "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.20.0.dev0",
        "use_cache": True, "vocab_size": 50272, "word_embed_proj_dim": 512,
    },
    "microsoft/phi-2": {
        "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0,
        "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560, "initializer_range": 0.02,
        "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
        "qk_layernorm": False, "resid_pdrop": 0.1, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.37.0", "use_cache": True, "vocab_size": 51200,
    },
    "tiiuae/falcon-7b": {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
        "hidden_size": 4544, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
        "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": True, "vocab_size": 65024,
    },
    "tiiuae/falcon-40b": {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
        "hidden_size": 8192, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
        "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
        "parallel_attn": True, "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": True,
        "vocab_size": 65024,
    },
    "stabilityai/stablelm-2-1_6b": {
        "architectures": ["StableLmForCausalLM"], "bos_token_id": 100257, "eos_token_id": 100257, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4096, "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 24,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.38.0", "use_cache": True, "use_qkv_bias": True,
        "vocab_size": 100352,
    },
}  # fmt: skip
PARAMETERS = {
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "allenai/OLMo-2-0425-1B": 1_484_916_736,
    "ibm-granite/granite-3.1-2b-base": 2_533_531_648,
    "ibm-granite/granite-3.0-1b-a400m-base": 1_334_628_352,
    "google/gemma-2b": 2_506_172_416,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "EleutherAI/gpt-neo-125m": 125_198_592,
    "allenai/Olmo-3-1025-7B": 7_298_011_136,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32_003_216_384,
    "THUDM/GLM-4-9B-0414": 9_400_279_040,
    "CohereForAI/aya-expanse-8b": 8_028_033_024,
    "CohereForAI/c4ai-command-r7b-12-2024": 8_028_033_024,
    "baidu/ERNIE-4.5-0.3B-PT": 360_748_032,
    "arcee-ai/AFM-4.5B": 4_619_184_640,
    "facebook/opt-350m": 331_196_416,
    "microsoft/phi-2": 2_779_683_840,
    "tiiuae/falcon-7b": 6_921_720_704,
    "tiiuae/falcon-40b": 41_303_293_952,
    "stabilityai/stablelm-2-1_6b": 1_644_515_328,
}
SIZES = {"hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 7}
FEW = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}
SMALL: dict[str, dict[str, Any]] = {
    "google/gemma-3-270m": SIZES | {"head_dim": 16, "sliding_window": 4, "num_hidden_layers": 18},
    "google/gemma-3-1b-it": SIZES | {"head_dim": 16, "sliding_window": 4},
    "HuggingFaceTB/SmolLM3-3B": SIZES | {"num_hidden_layers": 36},
    "allenai/OLMo-2-0425-1B": SIZES,
    "ibm-granite/granite-3.1-2b-base": FEW,
    "ibm-granite/granite-3.0-1b-a400m-base": FEW,
    "google/gemma-2b": SIZES | {"head_dim": 16},
    "bigcode/starcoder2-3b": FEW | {"sliding_window": 4},
    "EleutherAI/gpt-j-6b": {"n_embd": 40, "n_layer": 3, "n_head": 2, "rotary_dim": 6},
    "EleutherAI/gpt-neo-125m": {"hidden_size": 40, "num_heads": 4, "window_size": 5},
    "LGAI-EXAONE/EXAONE-4.0-32B": SIZES
    | {
        "num_hidden_layers": 5,
        "layer_types": [*[SLIDING] * 3, FULL, SLIDING],
        "sliding_window": 4,
        "head_dim": 10,
    },
    "allenai/Olmo-3-1025-7B": SIZES
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 4, "num_hidden_layers": 32},
    "THUDM/GLM-4-9B-0414": FEW | {"head_dim": 12},
    "CohereForAI/aya-expanse-8b": FEW,
    "CohereForAI/c4ai-command-r7b-12-2024": FEW | {"head_dim": 8, "sliding_window": 4},
    "baidu/ERNIE-4.5-0.3B-PT": FEW | {"head_dim": 12},
    "arcee-ai/AFM-4.5B": FEW | {"head_dim": 8},
    "facebook/opt-350m": {
        "hidden_size": 32,
        "ffn_dim": 20,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "word_embed_proj_dim": 12,
    },
    "microsoft/phi-2": FEW | {"num_key_value_heads": 4, "hidden_size": 40},
    "tiiuae/falcon-7b": {"hidden_size": 42, "num_attention_heads": 7, "num_hidden_layers": 3},
    "tiiuae/falcon-40b": {
        "hidden_size": 48,
        "num_attention_heads": 8,
        "num_kv_heads": 2,
        "num_hidden_layers": 3,
    },
    "stabilityai/stablelm-2-1_6b": FEW,
}


def read(config: dict[str, Any]) -> ModelConfig:
    return to_model_config(FAMILY.get(config["model_type"]), ConfigReader(config, "config.json"))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_whole_model_has_the_tensors_of_the_reference(name: str, tmp_path: Path) -> None:
    """Of full size, where tensors take no memory."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = read(CONFIGS[name])
    with torch.device("meta"):
        model = model_class(config)(config)
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    table = FAMILY.get(CONFIGS[name]["model_type"]).rules_for("CausalLM")
    found = {key: tuple(tensor.shape) for key, tensor in to_hf(table, named_state(model), config).items()}
    named = revert_weight_conversion(theirs, dict(theirs.named_parameters()))  # as in files, a tied one once
    assert found == {key: tuple(tensor.shape) for key, tensor in named.items()}
    assert sum(tensor.numel() for tensor in named.values()) == PARAMETERS[name]


SCALED = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(pytest.param(name, {}, id=name) for name in CONFIGS),
        *(
            pytest.param(name, SCALED, id=f"{name}-scaled")
            for name in CONFIGS
            if name
            not in (
                "EleutherAI/gpt-j-6b",
                "EleutherAI/gpt-neo-125m",
                "facebook/opt-350m",
            )  # without what could be scaled
        ),
    ],
)
def test_a_small_one_gives_the_logits_of_the_reference(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Every key as it was published but for sizes; the scaling is that of Gemma 3 from 4B on."""
    given = CONFIGS[name] | SMALL[name] | {"vocab_size": VOCABULARY, "pad_token_id": None} | changes
    (tmp_path / "config.json").write_text(json.dumps(given))
    torch.manual_seed(0)
    built = AutoConfig.from_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_config(built, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    named = revert_weight_conversion(theirs, dict(theirs.named_parameters()))
    save_file({key: tensor.detach() for key, tensor in named.items()}, tmp_path / "model.safetensors")
    train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY).save(tmp_path)
    for file, ids in (
        ("generation_config.json", {"eos_token_id": [2]}),
        ("config.json", {"eos_token_id": 2, "bos_token_id": 1}),
    ):
        path = tmp_path / file
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | ids))
    ours, tokens = ph.load(tmp_path).model, torch.randint(5, VOCABULARY, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_the_parts_are_those_of_the_reports() -> None:
    gemma, small = read(CONFIGS["google/gemma-3-1b-it"]), read(CONFIGS["google/gemma-3-270m"])
    local = {"window": 512, "qk_norm": "zero_centered", "scale": None}
    for config in (gemma, small):
        assert len(config.pattern) == 6
        for parts in config.pattern[:5]:
            assert parts.attention is not None and parts.position is not None
            assert local.items() <= parts.attention.options.items()
            assert parts.position.options["theta"] == 10_000
        assert (config.pattern[5].attention, config.pattern[5].position) == (None, None)
        assert (config.attention.options["window"], config.position.options["theta"]) == (None, 1_000_000)
        assert (config.sandwich_norm, config.scale_embedding, config.tie_embeddings) == (True, True, "all")
    smol = read(CONFIGS["HuggingFaceTB/SmolLM3-3B"])
    names = [parts.position and parts.position.name for parts in smol.pattern]
    assert (names, smol.position.options["theta"]) == ([None, None, None, "none"], 5_000_000)
    olmo = read(CONFIGS["allenai/OLMo-2-0425-1B"])
    assert (olmo.sandwich_norm, olmo.attention.options["qk_norm"], olmo.pattern) == ("after", "all_heads", ())
