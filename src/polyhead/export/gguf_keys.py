"""The sizes and numbers of a model, as llama.cpp reads them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.export.gguf_archs import Arch, Keys
from polyhead.hf.pattern import part
from polyhead.nn.position.scaling import SCALINGS, Turns


def keys_of(config: ModelConfig, arch: Arch) -> Keys:
    """The sizes and numbers of a model, under the names that llama.cpp gives them behind that of the architecture."""
    assert config.head_dim is not None
    eps = "layer_norm_rms_epsilon" if config.norm.name == "rmsnorm" else "layer_norm_epsilon"
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.max_len,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        f"attention.{eps}": config.norm.options["eps"],
        **_windows(config),
        **_rope(config),
        **arch.keys(config),
    }


def _windows(config: ModelConfig) -> Keys:
    sizes = [part(config, "attention", i).options["window"] for i in range(config.n_layers)]
    if not any(sizes):
        return {}
    return {
        "attention.sliding_window": next(filter(None, sizes)),
        "attention.sliding_window_pattern": [size is not None for size in sizes],
    }


def _rope(config: ModelConfig) -> Keys:
    layers = [(part(config, "position", i), part(config, "attention", i)) for i in range(config.n_layers)]
    found = {
        attention.options["window"] is not None: position.options
        for position, attention in reversed(layers)
        if position.name == "rope"
    }
    if not found:
        return {}
    options = found[min(found)]  # of layers that see all, if there are any
    assert config.head_dim is not None
    keys: Keys = {
        "rope.freq_base": options["theta"],
        "rope.dimension_count": int(config.head_dim * options["fraction"]),
    }
    if True in found:
        keys["rope.freq_base_swa"] = found[True]["theta"]
    if options["scaling"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": options["scaling"], "rope.scaling.factor": options["factor"]}
    if options["scaling"] == "yarn":
        keys["rope.scaling.original_context_length"] = options["original_len"]
    return keys


def slower(config: ModelConfig) -> Tensor | None:
    """By how much each pair turns more slowly than its theta says: (head_dim / 2,); None where a factor says it all."""
    options = next(iter(ropes(config)), None)
    if options is None or options["scaling"] != "llama3":
        return None
    assert config.head_dim is not None
    turns = Turns(options["theta"], config.head_dim, options["factor"], options["original_len"])
    scaled, _ = SCALINGS["llama3"](turns)
    return turns.rates() / scaled


def ropes(config: ModelConfig) -> list[dict[str, Any]]:
    """The options of rope in each layer that has it."""
    found = [part(config, "position", i) for i in range(config.n_layers)]
    return [choice.options for choice in found if choice.name == "rope"]
