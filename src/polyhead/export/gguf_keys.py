"""GGUF metadata of a model's sizes and hyperparameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.export.gguf_archs import GgufArch, GgufMetadata
from polyhead.hf.families.layer_types import layer_choice
from polyhead.nn.position.rope_scaling import ROPE_SCALINGS, RopeFrequencies


def model_metadata(config: ModelConfig, arch: GgufArch) -> GgufMetadata:
    """Return sizes and hyperparameters under llama.cpp's keys, without the prefix of the architecture."""
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
        **_window_metadata(config),
        **_rope_metadata(config),
        **arch.extra_metadata(config),
    }


def _window_metadata(config: ModelConfig) -> GgufMetadata:
    sizes = [layer_choice(config, "attention", i).options["window"] for i in range(config.n_layers)]
    if not any(sizes):
        return {}
    return {
        "attention.sliding_window": next(filter(None, sizes)),
        "attention.sliding_window_pattern": [size is not None for size in sizes],
    }


def _rope_metadata(config: ModelConfig) -> GgufMetadata:
    layers = [
        (layer_choice(config, "position", i), layer_choice(config, "attention", i))
        for i in range(config.n_layers)
    ]
    rope_by_window = {
        attention.options["window"] is not None: position.options
        for position, attention in reversed(layers)
        if position.name == "rope"
    }
    if not rope_by_window:
        return {}
    options = rope_by_window[min(rope_by_window)]  # of full-attention layers, if there are any
    assert config.head_dim is not None
    keys: GgufMetadata = {
        "rope.freq_base": options["theta"],
        "rope.dimension_count": int(config.head_dim * options["fraction"]),
    }
    if True in rope_by_window:
        keys["rope.freq_base_swa"] = rope_by_window[True]["theta"]
    if options["scaling"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": options["scaling"], "rope.scaling.factor": options["factor"]}
    if options["scaling"] == "yarn":
        keys["rope.scaling.original_context_length"] = options["original_len"]
    return keys


def rope_freq_factors(config: ModelConfig) -> Tensor | None:
    """Return the factor that slows each pair of features in llama3 scaling: (head_dim / 2,); None for other
    scalings.
    """
    options = next(iter(layer_rope_options(config)), None)
    if options is None or options["scaling"] != "llama3":
        return None
    assert config.head_dim is not None
    frequencies = RopeFrequencies(
        options["theta"], config.head_dim, options["factor"], options["original_len"]
    )
    scaled, _ = ROPE_SCALINGS["llama3"](frequencies)
    return frequencies.compute_inv_freq() / scaled


def layer_rope_options(config: ModelConfig) -> list[dict[str, Any]]:
    """Return the rope options of each layer that has rope."""
    positions = [layer_choice(config, "position", i) for i in range(config.n_layers)]
    return [choice.options for choice in positions if choice.name == "rope"]
