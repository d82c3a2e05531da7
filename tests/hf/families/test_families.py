"""Every family against the reference implementation: the same logits, the same text, the same files again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, make
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.cli import main
from polyhead.generation.batch_decode import beam_continuations, restore_order
from polyhead.generation.settings import with_overrides
from polyhead.hf.family import FAMILY
from polyhead.hf.load import load_model
from polyhead.kernels.pack_model import pack_model


class Case(NamedTuple):
    """A config of the reference implementation, and what is not at its default."""

    config: str
    sizes: dict[str, Any]


GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
LLAMA = {
    "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
NEOX = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
        "max_position_embeddings": 64}  # fmt: skip
GPTJ = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
       "attention_types": [[["global", "local"], 1]]}  # fmt: skip
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
MPT = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
OPT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 20,
    "max_position_embeddings": 64,
}
CASES = {
    "gpt2": [
        Case("GPT2Config", GPT2),
        Case("GPT2Config", {**GPT2, "n_embd": 36, "n_head": 3, "n_layer": 3, "n_inner": 20, "tie_word_embeddings": False}),
        Case("GPT2Config", {**GPT2, "n_embd": 10, "n_head": 5, "n_layer": 1, "activation_function": "relu",
                            "layer_norm_epsilon": 1e-3}),
        Case("GPT2Config", {**GPT2, "scale_attn_weights": False, "activation_function": "gelu"}),
    ],
    "gpt_bigcode": [
        Case("GPTBigCodeConfig", GPT2),
        Case("GPTBigCodeConfig", {**GPT2, "n_embd": 36, "n_head": 3, "n_layer": 3, "n_inner": 20, "tie_word_embeddings": False,
                                  "multi_query": False, "layer_norm_epsilon": 1e-3}),
        Case("GPTBigCodeConfig", {**GPT2, "n_embd": 20, "n_head": 5, "n_layer": 1, "activation_function": "relu"}),
        Case("GPTBigCodeConfig", {**GPT2, "n_embd": 24, "n_head": 1, "scale_attn_weights": False, "activation_function": "gelu"}),
    ],
    "llama": [
        Case("LlamaConfig", LLAMA),
        Case("LlamaConfig", {**LLAMA, "hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4,
                             "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3}),
        Case("LlamaConfig", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu",
                             "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
        Case("LlamaConfig", {**LLAMA, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}}),
        Case("LlamaConfig", {**LLAMA, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}}),
    ],
    "seed_oss": [
        Case("SeedOssConfig", {**LLAMA, "head_dim": 8}),
        Case("SeedOssConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12,
                               "num_hidden_layers": 3, "attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
                               "rms_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("SeedOssConfig", {**LLAMA, "num_key_value_heads": 4, "head_dim": None, "attention_bias": False, "hidden_act": "gelu",
                               "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                                   "original_max_position_embeddings": 16}}),
        Case("SeedOssConfig", {**LLAMA, "head_dim": 6, "attention_bias": False, "attention_out_bias": True}),
    ],
    "helium": [
        Case("HeliumConfig", {**LLAMA, "head_dim": 8}),
        Case("HeliumConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6,
                              "num_hidden_layers": 3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
                              "rms_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("HeliumConfig", {**LLAMA, "num_key_value_heads": 4, "head_dim": 8, "hidden_act": "gelu",
                              "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    ],
    "mistral": [
        Case("MistralConfig", {**LLAMA, "sliding_window": None}),
        Case("MistralConfig", {**LLAMA, "hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6,
                               "sliding_window": 5, "tie_word_embeddings": True}),
        Case("MistralConfig", {**LLAMA, "sliding_window": 3, "num_hidden_layers": 3}),
    ],
    "qwen2": [
        Case("Qwen2Config", LLAMA),
        Case("Qwen2Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1,
                             "tie_word_embeddings": True}),
        Case("Qwen2Config", {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        Case("Qwen2Config", {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ],
    "qwen3": [
        Case("Qwen3Config", {**LLAMA, "head_dim": 8}),
        Case("Qwen3Config", {**LLAMA, "hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
                             "tie_word_embeddings": True, "attention_bias": True}),
        Case("Qwen3Config", {**LLAMA, "num_key_value_heads": 4, "head_dim": 4, "rms_norm_eps": 0.1, "num_hidden_layers": 1}),
        Case("Qwen3Config", {**LLAMA, "use_sliding_window": True, "sliding_window": 3, "num_hidden_layers": 3,
                             "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    ],
    "mixtral": [
        Case("MixtralConfig", {**LLAMA, "num_local_experts": 4}),
        Case("MixtralConfig", {**LLAMA, "hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6,
                               "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 5, "hidden_act": "gelu",
                               "tie_word_embeddings": True}),
        Case("MixtralConfig", {**LLAMA, "num_local_experts": 3, "num_experts_per_tok": 3, "num_hidden_layers": 3}),
    ],
    "qwen3_moe": [
        Case("Qwen3MoeConfig", {**LLAMA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                                "moe_intermediate_size": 12}),
        Case("Qwen3MoeConfig", {**LLAMA, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
                                "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True,
                                "tie_word_embeddings": True, "attention_bias": True}),
        Case("Qwen3MoeConfig", {**LLAMA, "num_key_value_heads": 4, "head_dim": 4, "rms_norm_eps": 0.1, "num_experts": 6, "num_experts_per_tok": 1,
                                "moe_intermediate_size": 8}),
    ],
    "phi3": [
        Case("Phi3Config", LLAMA),
        Case("Phi3Config", {**LLAMA, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1,
                            "tie_word_embeddings": True, "sliding_window": 4,
                            "rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.75}}),
        Case("Phi3Config", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu", "rms_norm_eps": 1e-3,
                            "num_hidden_layers": 3, "partial_rotary_factor": 0.5}),
        Case("Phi3Config", {**LLAMA, "max_position_embeddings": 256, "original_max_position_embeddings": 64,
                            "partial_rotary_factor": 0.75, "rope_scaling": {
                                "type": "longrope", "short_factor": [1.0, 1.1, 1.5], "long_factor": [1.3, 4.0, 9.0]}}),
    ],
    "starcoder2": [
        Case("Starcoder2Config", LLAMA),
        Case("Starcoder2Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1,
                                  "num_hidden_layers": 3, "sliding_window": 4, "tie_word_embeddings": False,
                                  "norm_epsilon": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Case("Starcoder2Config", {**LLAMA, "num_key_value_heads": 4, "use_bias": False, "hidden_act": "gelu"}),
    ],
    "gpt_neox": [
        Case("GPTNeoXConfig", NEOX),
        Case("GPTNeoXConfig", {**NEOX, "hidden_size": 30, "num_attention_heads": 3, "rotary_pct": 0.4, "rotary_emb_base": 100,
                               "tie_word_embeddings": True, "attention_bias": False, "layer_norm_eps": 1e-3}),
        Case("GPTNeoXConfig", {**NEOX, "use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_new"}),
        Case("GPTNeoXConfig", {**NEOX, "num_hidden_layers": 1, "hidden_act": "gelu_fast",
                               "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0,
                                                   "partial_rotary_factor": 0.5}}),
    ],
    "arcee": [
        Case("ArceeConfig", LLAMA),
        Case("ArceeConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "num_hidden_layers": 3,
                             "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
                             "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("ArceeConfig", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu",
                             "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                                 "original_max_position_embeddings": 16}}),
    ],
    "nanochat": [
        Case("NanoChatConfig", LLAMA),
        Case("NanoChatConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 3,
                                "attention_bias": True, "tie_word_embeddings": True, "final_logit_softcapping": 2.0,
                                "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
        Case("NanoChatConfig", {**LLAMA, "num_key_value_heads": 4, "rms_norm_eps": 0.1, "hidden_act": "gelu", "final_logit_softcapping": None}),
    ],
    "gpt_neo": [
        Case("GPTNeoConfig", {**NEO, "window_size": 4}),
        Case("GPTNeoConfig", {**NEO, "hidden_size": 30, "num_heads": 5, "num_layers": 5, "intermediate_size": 20, "window_size": 3,
                              "attention_types": [[["local", "global"], 1], [["local"], 3]], "activation_function": "relu",
                              "layer_norm_epsilon": 1e-3}),
        Case("GPTNeoConfig", {**NEO, "num_layers": 3, "attention_types": [[["global"], 3]], "tie_word_embeddings": False,
                              "activation_function": "gelu"}),
    ],
    "gptj": [
        Case("GPTJConfig", GPTJ),
        Case("GPTJConfig", {**GPTJ, "n_embd": 30, "n_head": 5, "n_layer": 3, "n_inner": 20, "rotary_dim": 6,
                            "activation_function": "relu", "layer_norm_epsilon": 1e-3}),
        Case("GPTJConfig", {**GPTJ, "n_embd": 45, "n_head": 1, "rotary_dim": 26, "activation_function": "gelu"}),
    ],
    "phi": [
        Case("PhiConfig", LLAMA),
        Case("PhiConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1,
                           "num_hidden_layers": 3, "layer_norm_eps": 1e-3, "hidden_act": "relu",
                           "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.4}}),
        Case("PhiConfig", {**LLAMA, "num_key_value_heads": 4, "partial_rotary_factor": 1.0}),
        Case("PhiConfig", {**LLAMA, "qk_layernorm": True, "layer_norm_eps": 0.1}),
        Case("PhiConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1, "qk_layernorm": True,
                           "partial_rotary_factor": 0.6}),
    ],
    "falcon": [
        Case("FalconConfig", FALCON),
        Case("FalconConfig", {**FALCON, "hidden_size": 36, "num_attention_heads": 6, "num_kv_heads": 2, "num_hidden_layers": 3,
                              "new_decoder_architecture": True, "bias": True, "tie_word_embeddings": False,
                              "ffn_hidden_size": 20, "layer_norm_epsilon": 1e-3, "activation": "relu",
                              "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Case("FalconConfig", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
        Case("FalconConfig", {**FALCON, "hidden_size": 30, "num_attention_heads": 3, "multi_query": False}),
        Case("FalconConfig", {**FALCON, "parallel_attn": False, "bias": True}),
        Case("FalconConfig", {**FALCON, "num_kv_heads": 4, "new_decoder_architecture": True}),
    ],
    "stablelm": [
        Case("StableLmConfig", {**LLAMA, "hidden_size": 64}),
        Case("StableLmConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1,
                                "use_qkv_bias": True, "tie_word_embeddings": True, "num_hidden_layers": 3,
                                "layer_norm_eps": 1e-3,
                                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.4}}),
        Case("StableLmConfig", {**LLAMA, "num_key_value_heads": 4, "use_parallel_residual": True, "hidden_act": "gelu",
                                "partial_rotary_factor": 0.5}),
        Case("StableLmConfig", {**LLAMA, "hidden_size": 64, "qk_layernorm": True, "layer_norm_eps": 0.1, "use_parallel_residual": True}),
        Case("StableLmConfig", {**LLAMA, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "qk_layernorm": True,
                                "use_qkv_bias": True}),
    ],
    "opt": [
        Case("OPTConfig", OPT),
        Case("OPTConfig", {**OPT, "hidden_size": 30, "num_attention_heads": 5, "do_layer_norm_before": False,
                           "tie_word_embeddings": False, "word_embed_proj_dim": 30}),
        Case("OPTConfig", {**OPT, "enable_bias": False, "activation_function": "gelu", "num_hidden_layers": 3}),
        Case("OPTConfig", {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
        Case("OPTConfig", {**OPT, "word_embed_proj_dim": 40, "tie_word_embeddings": False}),
    ],
    "bloom": [
        Case("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
        Case("BloomConfig", {"hidden_size": 30, "n_layer": 3, "n_head": 5, "tie_word_embeddings": False,
                             "layer_norm_epsilon": 1e-3}),
        Case("BloomConfig", {"hidden_size": 18, "n_layer": 1, "n_head": 3}),
    ],
    "mpt": [
        Case("MptConfig", MPT),
        Case("MptConfig", {**MPT, "d_model": 30, "n_layers": 3, "n_heads": 5, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3,
                           "attn_config": {"softmax_scale": 0.7}}),
        Case("MptConfig", {**MPT, "d_model": 36, "n_heads": 6, "n_layers": 1}),
    ],
    "granite": [
        Case("GraniteConfig", {**LLAMA, "embedding_multiplier": 12.0, "attention_multiplier": 0.0625, "residual_multiplier": 0.22,
                               "logits_scaling": 8.0}),
        Case("GraniteConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1,
                               "num_hidden_layers": 3, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
                               "rms_norm_eps": 1e-3, "embedding_multiplier": 3, "attention_multiplier": 0.7,
                               "residual_multiplier": 0.4, "logits_scaling": 0.7,
                               "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Case("GraniteConfig", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu"}),
        Case("GraniteConfig", {**LLAMA, "hidden_size": 64, "embedding_multiplier": 8.0, "attention_multiplier": 0.25,
                               "logits_scaling": 8}),
    ],
    "granitemoe": [
        Case("GraniteMoeConfig", {**LLAMA, "num_local_experts": 4, "embedding_multiplier": 12.0, "attention_multiplier": 0.0625,
                                  "residual_multiplier": 0.22, "logits_scaling": 6.0}),
        Case("GraniteMoeConfig", {**LLAMA, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1,
                                  "num_hidden_layers": 3, "num_local_experts": 5, "num_experts_per_tok": 3,
                                  "tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 1e-3,
                                  "embedding_multiplier": 3, "attention_multiplier": 0.7, "residual_multiplier": 0.4,
                                  "logits_scaling": 0.7, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Case("GraniteMoeConfig", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu", "num_local_experts": 3,
                                  "num_experts_per_tok": 3}),
    ],
    "gemma": [
        Case("GemmaConfig", {**LLAMA, "head_dim": 8}),
        Case("GemmaConfig", {**LLAMA, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
                             "num_hidden_layers": 3, "tie_word_embeddings": False, "attention_bias": True, "rms_norm_eps": 1e-3,
                             "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Case("GemmaConfig", {**LLAMA, "num_key_value_heads": 4, "head_dim": 6, "hidden_act": "gelu"}),
        Case("GemmaConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10,
                             "hidden_act": "silu", "num_hidden_layers": 1}),
    ],
    "gemma2": [
        Case("Gemma2Config", {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}),
        Case("Gemma2Config", {**LLAMA, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
                              "num_hidden_layers": 3, "sliding_window": 3, "query_pre_attn_scalar": 20,
                              "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5, "tie_word_embeddings": False,
                              "attention_bias": True, "rms_norm_eps": 1e-3}),
        Case("Gemma2Config", {**LLAMA, "num_key_value_heads": 4, "head_dim": 6, "num_hidden_layers": 4, "sliding_window": 5,
                              "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                              "attn_logit_softcapping": None, "final_logit_softcapping": None,
                              "hidden_activation": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("Gemma2Config", {**LLAMA, "head_dim": 8, "layer_types": ["full_attention"] * 2, "sliding_window": 4}),
    ],
    "gemma3_text": [
        Case("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4,
                                  "num_hidden_layers": 7}),
        Case("Gemma3TextConfig", {**LLAMA, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1,
                                  "head_dim": 10, "num_hidden_layers": 3, "sliding_window": 3, "query_pre_attn_scalar": 20,
                                  "final_logit_softcapping": 2.5, "tie_word_embeddings": False, "attention_bias": True,
                                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                                  "rope_parameters": {
                                      "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                                      "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0}}}),
        Case("Gemma3TextConfig", {**LLAMA, "num_key_value_heads": 4, "head_dim": 6, "num_hidden_layers": 4,
                                  "sliding_window": 5, "hidden_activation": "silu",
                                  "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                                  "rope_parameters": {
                                      "sliding_attention": {"rope_type": "linear", "rope_theta": 60.0, "factor": 2.0},
                                      "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                                         "original_max_position_embeddings": 16}}}),
        Case("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "rms_norm_eps": 0.1, "layer_types": ["full_attention"] * 2}),
        Case("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "layer_types": ["sliding_attention"] * 2, "sliding_window": 3}),
    ],
    "smollm3": [
        Case("SmolLM3Config", {**LLAMA, "num_hidden_layers": 5}),
        Case("SmolLM3Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1,
                               "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1], "tie_word_embeddings": False,
                               "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3, "use_sliding_window": True,
                               "sliding_window": 4, "head_dim": 8}),
        Case("SmolLM3Config", {**LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 4, "no_rope_layer_interval": 2,
                               "use_sliding_window": True, "sliding_window": 5, "hidden_act": "gelu",
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
                               "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                                   "original_max_position_embeddings": 16}}),
        Case("SmolLM3Config", {**LLAMA, "no_rope_layers": [0, 0]}),
    ],
    "olmo2": [
        Case("Olmo2Config", {**LLAMA, "rms_norm_eps": 1e-6}),
        Case("Olmo2Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1,
                             "num_hidden_layers": 3, "head_dim": 8, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
                             "attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        Case("Olmo2Config", {**LLAMA, "num_key_value_heads": 4, "rms_norm_eps": 0.1, "hidden_act": "gelu",
                             "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    ],
    "olmo3": [
        Case("Olmo3Config", {**LLAMA, "rms_norm_eps": 1e-6, "num_hidden_layers": 5, "sliding_window": 4}),
        Case("Olmo3Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8,
                             "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": True,
                             "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                             "rope_parameters": {
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                                 "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                                    "original_max_position_embeddings": 16}}}),
        Case("Olmo3Config", {**LLAMA, "num_key_value_heads": 4, "rms_norm_eps": 0.1, "hidden_act": "gelu",
                             "layer_types": ["full_attention"] * 2}),
        Case("Olmo3Config", {**LLAMA, "rms_norm_eps": 1e-6, "layer_types": ["sliding_attention"] * 2, "sliding_window": 5,
                             "rope_theta": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ],
    "exaone4": [
        Case("Exaone4Config", {**LLAMA, "rms_norm_eps": 1e-6, "num_hidden_layers": 5, "sliding_window": 4}),
        Case("Exaone4Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8,
                               "num_hidden_layers": 3, "rms_norm_eps": 1e-3, "tie_word_embeddings": True, "sliding_window": 3,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                               "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0,
                                                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                   "original_max_position_embeddings": 16}}),
        Case("Exaone4Config", {**LLAMA, "num_key_value_heads": 4, "rms_norm_eps": 0.1, "hidden_act": "gelu",
                               "sliding_window": None, "layer_types": ["full_attention"] * 2}),
        Case("Exaone4Config", {**LLAMA, "sliding_window": 5, "layer_types": ["full_attention"] * 2}),
    ],
    "ernie4_5": [
        Case("Ernie4_5Config", {**LLAMA, "head_dim": 8}),
        Case("Ernie4_5Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12,
                                "num_hidden_layers": 3, "use_bias": True, "tie_word_embeddings": False, "rms_norm_eps": 1e-3,
                                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("Ernie4_5Config", {**LLAMA, "num_key_value_heads": 4, "head_dim": 6, "hidden_act": "gelu",
                                "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    ],
    "glm": [
        Case("GlmConfig", {**LLAMA, "head_dim": 8}),
        Case("GlmConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12,
                           "num_hidden_layers": 3, "attention_bias": False, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.7}}),
        Case("GlmConfig", {**LLAMA, "num_key_value_heads": 4, "head_dim": 6, "hidden_act": "gelu", "partial_rotary_factor": 1.0}),
    ],
    "glm4": [
        Case("Glm4Config", {**LLAMA, "head_dim": 8}),
        Case("Glm4Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12,
                            "num_hidden_layers": 3, "attention_bias": False, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.7}}),
        Case("Glm4Config", {**LLAMA, "num_key_value_heads": 4, "head_dim": 6, "hidden_act": "gelu", "partial_rotary_factor": 1.0}),
    ],
    "cohere": [
        Case("CohereConfig", LLAMA),
        Case("CohereConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "num_hidden_layers": 3,
                              "attention_bias": True, "tie_word_embeddings": False, "layer_norm_eps": 1e-3, "logit_scale": 0.8,
                              "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("CohereConfig", {**LLAMA, "use_qk_norm": True, "layer_norm_eps": 0.1, "logit_scale": 0.25}),
        Case("CohereConfig", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "use_qk_norm": True,
                              "attention_bias": True, "num_hidden_layers": 1}),
        Case("CohereConfig", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu", "logit_scale": 1.0,
                              "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    ],
    "cohere2": [
        Case("Cohere2Config", {**LLAMA, "num_hidden_layers": 5, "sliding_window": 4}),
        Case("Cohere2Config", {**LLAMA, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1,
                               "num_hidden_layers": 3, "sliding_window": 3, "attention_bias": True, "tie_word_embeddings": False,
                               "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "logit_scale": 0.25,
                               "layer_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        Case("Cohere2Config", {**LLAMA, "num_key_value_heads": 4, "hidden_act": "gelu", "layer_types": ["full_attention"] * 2}),
        Case("Cohere2Config", {**LLAMA, "layer_types": ["sliding_attention"] * 2, "sliding_window": 5}),
    ],
}  # fmt: skip
ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]
NORMED = {"cohere": 2, "stablelm": 3, "phi": 3}  # those with normalised queries and keys
FIRST = [pytest.param(cases[1], id=name) for name, cases in CASES.items()]
FIRST += [pytest.param(CASES[name][i], id=f"{name}-normed") for name, i in NORMED.items()]


def test_every_family_has_three_shapes() -> None:
    assert CASES.keys() == {name for name in FAMILY.names() if "CausalLM" in FAMILY.get(name).architectures}
    assert all(len(cases) >= 3 for cases in CASES.values())


@pytest.mark.parametrize("case", ALL)
def test_logits_are_those_of_the_reference(case: Case, tmp_path: Path) -> None:
    theirs, tokens = make(tmp_path, case.config, **case.sizes), torch.randint(5, 300, (3, 20))
    ours = load_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", FIRST)
def test_padding_on_either_side_does_not_matter(case: Case, side: str, tmp_path: Path) -> None:
    theirs, lengths = make(tmp_path, case.config, **case.sizes), torch.tensor([12, 7, 1])
    ours, place = load_model(tmp_path), torch.arange(12)
    real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
    tokens = torch.randint(5, 300, (3, 12))
    pos = real.long().cumsum(1) - 1
    with torch.no_grad():
        logits = ours(tokens, pos.masked_fill(~real, -1))
        wanted = theirs(tokens, attention_mask=real.long(), position_ids=pos.clamp(min=0)).logits
        torch.testing.assert_close(logits[real], wanted[real], rtol=1e-5, atol=1e-5)
        for row in range(3):
            alone = ours(tokens[row][real[row]][None])
            torch.testing.assert_close(logits[row][real[row]], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cache", ["growing", "static", "paged"])
@pytest.mark.parametrize("case", FIRST)
def test_steps_give_the_logits_of_the_reference_beyond_any_window(
    case: Case, cache: str, tmp_path: Path
) -> None:
    theirs, tokens = make(tmp_path, case.config, **case.sizes), torch.randint(5, 300, (2, 20))
    plain = load_model(tmp_path)
    with torch.inference_mode():
        wanted = theirs(tokens).logits
        for model in (plain, pack_model(copy.deepcopy(plain))):
            held, found = make_cache(Choice(cache), model.cache_shape, 2, 20), []
            for start, end in ((0, 3), *((t, t + 1) for t in range(3, 20))):
                pos = torch.arange(start, end).expand(2, -1)
                held.prepare_step(range(2), pos)
                found.append(model.decode(tokens[:, start:end], pos, held))
            torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", FIRST)
def test_greedy_text_is_that_of_the_reference(case: Case, tmp_path: Path) -> None:
    theirs, run = make(tmp_path, case.config, **case.sizes), ph.load(tmp_path)
    prompts = ["the king", "a dog barks at"]
    assert run.generation.temperature == 0  # as theirs: nothing says that tokens are drawn
    for ngram in (0, 2):
        said = run.generate(prompts, max_new_tokens=12, no_repeat_ngram_size=ngram)
        for prompt, ours in zip(prompts, said, strict=True):
            ids = run.tokenizer.encode([prompt])
            out = theirs.generate(
                torch.tensor(ids),
                max_new_tokens=12,
                do_sample=False,
                pad_token_id=0,
                no_repeat_ngram_size=ngram,
            )
            # the text of a run ends with a whole character
            assert prompt + ours == run.tokenizer.decode([out[0].tolist()])[0].rstrip("\ufffd")


@pytest.mark.parametrize("beams", [3, 5])
@pytest.mark.parametrize("case", FIRST)
def test_beams_find_the_texts_and_scores_of_the_reference(case: Case, beams: int, tmp_path: Path) -> None:
    """One prompt after another there, all at once here; the end is the likeliest token after the first."""
    theirs, run = make(tmp_path, case.config, seed=2, **case.sizes), ph.load(tmp_path)
    prompts = run.tokenizer.encode(["the king of the sea", "a dog", "two dogs bark"])
    lengths: set[int] = set()
    with torch.no_grad():
        end = int(theirs(torch.tensor(prompts[:1])).logits[0, -1].argmax())
    for penalty, ngram in ((1.0, 0), (-0.5, 0), (1.0, 2)):
        changes = {"beam_size": beams, "n_best": beams, "max_new_tokens": 9, "length_penalty": penalty}
        changes["no_repeat_ngram_size"] = ngram
        config = with_overrides(run.generation, changes, "the likeliest texts")
        found = restore_order(
            beam_continuations(run.model, prompts, config, eos_id=end, max_len=32), len(prompts)
        )
        for prompt, ours in zip(prompts, found, strict=True):
            wanted = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=9, do_sample=False, num_beams=beams, num_return_sequences=beams,
                length_penalty=penalty, no_repeat_ngram_size=ngram, eos_token_id=end, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
            texts = [row[len(prompt) :] for row in wanted.sequences.tolist()]
            texts = [row[: row.index(end)] if end in row else row for row in texts]
            assert [h.tokens for h in ours] == texts
            assert [h.score for h in ours] == pytest.approx(wanted.sequences_scores.tolist(), rel=1e-5)
            lengths |= set(map(len, texts))
    assert len(lengths) > 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", ALL)
def test_a_run_exports_to_the_very_same_tensors(case: Case, dtype: str, tmp_path: Path) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    make(tmp_path / "a", case.config, dtype=name, **case.sizes)
    if dtype == "fp32":  # the checkpoint itself, whose family it knows
        assert main(["export", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    else:
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype]) == 0
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype
        assert tensor.shape == after[key].shape
        assert (
            tensor.numpy(force=True).tobytes() == after[key].numpy(force=True).tobytes()
            if dtype != "bf16"
            else (torch.equal(tensor.view(torch.int16), after[key].view(torch.int16)))
        )


OLDER = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")


@pytest.mark.parametrize("case", [case for case in ALL if "'rope_parameters': " in str(case)])
def test_readers_of_the_older_keys_find_theta_and_its_scaling(case: Case, tmp_path: Path) -> None:
    """Those before transformers 5 know no rope_parameters, and would take 10,000 and no scaling."""
    config = make(tmp_path / "a", case.config, **case.sizes).config
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    found, given = json.loads((tmp_path / "b/config.json").read_text()), config.rope_parameters
    if "full_attention" in given:  # one for each kind of layer, of which one is scaled
        if config.model_type == "gemma3_text":
            assert found["rope_local_base_freq"] == given["sliding_attention"]["rope_theta"]
        given = given["full_attention"]
    theta = "rotary_emb_base" if config.model_type == "gpt_neox" else "rope_theta"
    assert found[theta] == given["rope_theta"]
    if config.model_type == "gpt_neox":
        return
    kind = {} if given["rope_type"] == "default" else {"rope_type": given["rope_type"]}
    wanted = kind | {key: given[key] for key in OLDER if key in given}
    assert (found["rope_scaling"] or {}) == wanted


@pytest.mark.parametrize("case", ALL)
def test_from_pretrained_opens_what_was_exported(case: Case, tmp_path: Path) -> None:
    theirs, tokens = make(tmp_path / "a", case.config, **case.sizes), torch.randint(5, 300, (2, 15))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    again, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert type(again) is type(theirs)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-6)
    assert (again.config.eos_token_id, again.config.bos_token_id) == (2, 1)
    tokenizer, ours = AutoTokenizer.from_pretrained(tmp_path / "b"), ph.load(tmp_path / "run").tokenizer
    for text in TEXTS:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ours.encode([text])[0]
    assert tokenizer.eos_token_id == 2


def test_with_room_for_more_than_it_was_trained_with_phi_reads_by_the_long_factors(tmp_path: Path) -> None:
    """As the reference reads texts longer than that; up to there it takes the short ones, and so do we at first."""
    case = CASES["phi3"][-1]
    make(tmp_path / "theirs", case.config, **case.sizes)
    ours = ph.load(tmp_path / "theirs")
    assert ours.model.config.max_len == 64
    ours.save(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"max_len": 64', '"max_len": 256'))
    longer = ph.load(tmp_path / "run")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    ids = torch.randint(5, 300, (2, 200))
    with torch.inference_mode():
        torch.testing.assert_close(longer.model(ids), theirs(ids).logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.model(ids[:, :64]), theirs(ids[:, :64]).logits, rtol=0, atol=1e-5)
        assert (longer.model(ids[:, :64]) - ours.model(ids[:, :64])).abs().max() > 1e-3
    ours.save(tmp_path / "run")
    out = str(tmp_path / "again")
    assert main(["export", str(tmp_path / "run"), out]) == 0
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said["rope_scaling"].keys() == {"type", "short_factor", "long_factor"}, "older readers refuse more"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert again.config.max_position_embeddings == 256
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=1e-6)
