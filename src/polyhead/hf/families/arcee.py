"""Arcee's AFM (2025): Llama with squared ReLU in place of a gated feed-forward."""

from __future__ import annotations

from polyhead.core.choice import Choice
from polyhead.hf.config_map import defaults
from polyhead.hf.families.llama import BIASES, BUFFERS, DIVISIBLE_HEADS, TABLE, TIED, llama_keys
from polyhead.hf.family import FAMILY, HF_ACTIVATIONS, ModelFamily, map_activation

ACTIVATIONS = {"relu2": Choice("relu2"), **HF_ACTIVATIONS}
# defaults of AFM-4.5B
DEFAULTS = defaults(hidden_size=2560, max_position_embeddings=4096, rms_norm_eps=1e-5)
KEYS = (
    DEFAULTS,
    *llama_keys(feed_forward=map_activation("hidden_act", "relu2", ACTIVATIONS)),
    DIVISIBLE_HEADS,
    *BIASES,
)
FAMILY.register("arcee")(ModelFamily({"CausalLM": "ArceeForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
