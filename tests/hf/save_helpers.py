"""Configurations of our own decoders that a published family has, and runs of them."""

from pathlib import Path
from typing import Any

from tests.hf.conftest import VOCABULARY, random_run

from polyhead import ModelConfig
from polyhead.config.generation_config import GenerationConfig

NO_BIAS = {"name": "softmax", "bias": False}
HALF_ROPE = {"name": "rope", "fraction": 0.5}
INTERLEAVED_ROPE = {"name": "rope", "layout": "interleaved"}
TANH_GELU = {"name": "gelu", "tanh": True}
LIKE_GPT2 = {"kind": "decoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32}
LIKE_GPT2 |= {"norm_first": True, "position": "learned", "feed_forward": TANH_GELU, "scale_embedding": False}
LIKE_LLAMA = {"position": "rope", "norm": "rmsnorm", "feed_forward": "swiglu", "attention": NO_BIAS}
LIKE_OLMO = LIKE_LLAMA | {"sandwich_norm": "after", "attention": NO_BIAS | {"qk_norm": "all_heads"}}
LIKE_EXAONE = LIKE_OLMO | {"attention": NO_BIAS | {"qk_norm": True}}
LIKE_STABLELM = LIKE_LLAMA | {"norm": "layernorm", "position": HALF_ROPE}
LIKE_PHI = {"block": {"name": "parallel", "one_norm": True}, "position": HALF_ROPE, "lm_head_bias": True}
LIKE_PHI |= {"attention": {"name": "softmax", "qk_norm": "layernorm", "qk_eps": 1e-5}}
LIKE_PHI |= {"tie_embeddings": "none"}
LIKE_COHERE = LIKE_LLAMA | {"block": {"name": "parallel", "one_norm": True}, "position": INTERLEAVED_ROPE}
LIKE_COHERE |= {"norm": {"name": "layernorm", "bias": False}, "logits_scale": 4.0}
LIKE_COHERE |= {"attention": NO_BIAS | {"qk_norm": "per_head", "qk_eps": 1e-5}}
LIKE_MPT = {"position": "alibi", "norm": {"name": "layernorm", "bias": False}}
LIKE_MPT |= {"feed_forward": {"name": "gelu", "bias": False}, "attention": NO_BIAS | {"scale": 0.3}}
LIKE_HELIUM = LIKE_LLAMA | {"position": INTERLEAVED_ROPE, "attention": {"name": "softmax", "bias": "qkv"}}
LIKE_HELIUM |= {"feed_forward": {"name": "swiglu", "bias": True}}
LIKE_NANOCHAT = LIKE_LLAMA | {"norm": {"name": "rmsnorm", "weight": False}, "embedding_norm": True}
LIKE_NANOCHAT |= {"feed_forward": {"name": "relu2", "bias": False}}
LIKE_NANOCHAT |= {"attention": NO_BIAS | {"qk_norm": "unweighted"}}
GEMMA_WINDOW = NO_BIAS | {"window": 4, "softcap": 20.0}
LIKE_GEMMA = {"position": "rope", "norm": {"name": "rmsnorm", "zero_centered": True}, "sandwich_norm": True}
LIKE_GEMMA |= {"scale_embedding": True, "feed_forward": {"name": "geglu", "tanh": True}}
LIKE_GEMMA |= {"attention": GEMMA_WINDOW | {"window": None}, "logit_softcap": 30.0}
LIKE_GEMMA |= {"layer_pattern": [{"attention": GEMMA_WINDOW}, {}]}
GEMMA3_ATTENTION = NO_BIAS | {"qk_norm": "zero_centered", "scale": 0.25}
GEMMA3_WINDOW = {"attention": GEMMA3_ATTENTION | {"window": 4}}
LIKE_GEMMA3 = LIKE_GEMMA | {"attention": GEMMA3_ATTENTION, "logit_softcap": None, "n_layers": 3}
LIKE_GEMMA3 |= {"position": {"name": "rope", "theta": 1e6, "scaling": "linear", "factor": 8.0}}
LIKE_GEMMA3 |= {"layer_pattern": [GEMMA3_WINDOW | {"position": {"name": "rope", "theta": 500.0}}, {}]}
LIKE_GEMMA3 |= {"head_dim": 10, "n_kv_heads": 1}
LIKE_T5 = {"kind": "encoder-decoder", "position": "t5", "norm": {"name": "rmsnorm", "eps": 1e-6}}
LIKE_T5 |= {"logits_scale": True, "n_heads": 5, "head_dim": 4, "attention": NO_BIAS | {"scale": 1.0}}
LIKE_T5 |= {"feed_forward": {"name": "relu", "bias": False}}
LIKE_MODERNBERT = {"kind": "encoder", "position": "rope", "norm": {"name": "layernorm", "bias": False}}
LIKE_MODERNBERT |= {"embedding_norm": "first", "attention": NO_BIAS, "lm_head_bias": True}
LIKE_MODERNBERT |= {"feed_forward": {"name": "geglu", "bias": False}}


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(vocab_size=VOCABULARY, **(LIKE_GPT2 | changes))


def saved(directory: Path, **changes: Any) -> Any:
    """A random model, saved as a run."""
    generation = GenerationConfig(temperature=0.8, top_p=0.9, no_repeat_ngram_size=4)
    run = random_run(config(**changes), generation)
    run.save(directory)
    return run.model
