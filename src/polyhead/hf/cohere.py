"""Command R, Aya (Cohere, 2024) and Command R7B: sub-layers side by side behind one norm, rope on features side by side."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.granite import above_0
from polyhead.hf.keys import ONE_NORM, Fields, Key, fixed, flag, norm, passed, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, DIVIDED, TIED, keys, query_norms, rope_said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, rope_of, turned, window_of, windows_said
from polyhead.hf.table import STACKED, one
from polyhead.ranges import factor_of


def scale(given: Given, fields: Fields) -> Fields:
    """The head's scores are multiplied there, and what it reads is divided here."""
    divisor = 1 / above_0(given, "logit_scale")
    return {"scale_output": divisor == fields["d_model"] ** 0.5 or divisor}


def scale_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``scale``."""
    return {"logit_scale": 1 / factor_of(config.scale_output, config.d_model**0.5)}


def layers(given: Given, fields: Fields) -> Fields:
    """Three of four layers have a window, and the others no positions."""
    every = given.size("sliding_window_pattern", 4)
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % every > 0)
    turns: dict[str, Fields] = {WHOLE: {"position": "none"}}
    if WINDOW in kinds:
        turns[WINDOW] = {"attention": fields["attention"] | {"window": window_of(given)}}
    return {"pattern": turned(kinds, turns)}


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``, and the rope of those that have it."""
    return rope_said(rope_of(config)) | windows_said(config, config.max_len)


BOTH = (
    unsaid(hidden_size=8192, num_hidden_layers=40, num_attention_heads=64, max_position_embeddings=8192),
    unsaid(logit_scale=0.0625, tie_word_embeddings=True),
    passed("rms_norm_eps", "model_max_length"),  # the reference reads others
    *keys(norms=norm("layer_norm_eps", "layernorm", 1e-5)),
    DIVIDED,
    fixed(block=ONE_NORM),
    fixed(norm={"bias": False}, position={"layout": "interleaved"}),
    flag("attention_bias", "attention.bias", False),
    Key(scale, scale_said),
)
KEYS = (unsaid(rope_theta=500_000.0), *BOTH, query_norms("each", "use_qk_norm"))
# what files say and the reference does not read
UNREAD = """
    _sliding_window_pattern cache_implementation layer_switch order_of_interleaved_layers position_embedding_type rotary_pct
    use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding
""".split()  # noqa: SIM905
KEYS_2 = (passed("sliding_window", *UNREAD), *BOTH, Key(layers, layers_said))
TABLE = (
    *(row for row in LLAMA if "post_attention" not in row.theirs and "_norm." not in row.theirs),
    *one(f"{BLOCK}.self_attn.q_norm.weight", f"{LAYER}.attn.q_norm.heads.{{q}}", step=STACKED),
    *one(f"{BLOCK}.self_attn.k_norm.weight", f"{LAYER}.attn.k_norm.heads.{{k}}", step=STACKED),
)
FAMILY.register("cohere")(Family({"CausalLM": "CohereForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
FAMILY.register("cohere2")(Family({"CausalLM": "Cohere2ForCausalLM"}, KEYS_2, TABLE, "model.", BUFFERS, TIED))
