"""Arcee's AFM (2025): Llama with squared ReLUs in place of gates."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, PLAIN, Family, activation
from polyhead.hf.keys import unsaid
from polyhead.hf.llama import BIASES, BUFFERS, DIVIDED, TABLE, TIED, keys
from polyhead.registry import Choice

ACTIVATIONS = {"relu2": Choice("relu2"), **PLAIN}
# what is not given is as in AFM-4.5B
UNSAID = unsaid(hidden_size=2560, max_position_embeddings=4096, rms_norm_eps=1e-5)
KEYS = (UNSAID, *keys(feed_forward=activation("hidden_act", "relu2", ACTIVATIONS)), DIVIDED, *BIASES)
FAMILY.register("arcee")(Family({"CausalLM": "ArceeForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
