"""Choose the llama.cpp architecture of a model, and list what it does not support."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.export.gguf_archs import ARCHS, QKV_NAMES, GgufArch
from polyhead.export.gguf_keys import layer_rope_options
from polyhead.hf import save
from polyhead.hf.families.layer_types import layer_choice


def find_arch(config: ModelConfig) -> tuple[GgufArch, ModelConfig]:
    """Return the architecture of a model, and the config as exported; a UserError lists the unsupported
    parts.
    """
    if config.kind != "decoder":
        raise UserError(f"llama.cpp supports language models only; this model is kind={config.kind!r}")
    arch, exported_config, obstacles = nearest_arch(config)
    if obstacles:
        raise UserError(
            f"llama.cpp does not support this model; the nearest architecture is {arch.name!r}: "
            f"{'; '.join(obstacles)}"
        )
    return arch, exported_config


def nearest_arch(config: ModelConfig) -> tuple[GgufArch, ModelConfig, list[str]]:
    """Return the architecture that supports most of a language model, the config as exported, and the
    unsupported parts.
    """
    candidates: list[tuple[GgufArch, ModelConfig, list[str]]] = []
    for family, arch in ARCHS.items():
        exported_config = _with_zero_biases(config) if arch.needs_biases else config
        try:
            obstacles = list(
                dict.fromkeys(
                    [*save.hf_unsupported(exported_config, family), *gguf_unsupported(exported_config, arch)]
                )
            )
        except UserError:  # the family has no such model
            continue
        candidates.append((arch, exported_config, obstacles))
        if not obstacles:
            break
    return min(candidates, key=lambda candidate: len(candidate[2]))


def _with_zero_biases(config: ModelConfig) -> ModelConfig:
    """Return the config with all biases; new ones are zero."""
    parts = {name: getattr(config, name) for name in ("attention", "norm", "feed_forward")}
    return config.model_copy(
        update={
            name: Choice(choice.name, **{**choice.options, "bias": True})
            for name, choice in parts.items()
            if "bias" in choice.options
        }
    )


def gguf_unsupported(config: ModelConfig, arch: GgufArch) -> Iterator[str]:
    """Yield a line for each part or option that the architecture does not support, though its family may."""
    layers = [layer_choice(config, "attention", i) for i in range(config.n_layers)]
    if any(choice.name != "softmax" for choice in layers):  # unsupported in every family
        return
    yield from arch.check_limits(config)
    if config.feed_forward.name not in arch.feed_forward:
        yield (
            f"feed_forward is {config.feed_forward.name!r}, expected "
            f"{' or '.join(map(repr, arch.feed_forward))}"
        )
    elif config.feed_forward.options.get("tanh") is False and config.feed_forward.name == "geglu":
        yield "tanh of feed_forward is false, expected true"
    if config.feed_forward.options.get("bias") and "up_proj" not in arch.biases:
        yield "bias of feed_forward is true, expected false"
    if not arch.has_windows and any(choice.options["window"] for choice in layers):
        yield "attention has windows, expected none"
    biased, scale = (layers[0].options[name] for name in ("bias", "scale"))
    if (biased and QKV_NAMES[0] not in arch.biases) or (
        biased in (True, "o") and "o_proj" not in arch.biases
    ):
        yield (
            f"bias of attention is {format_value(biased)}, expected "
            f"{format_value('qkv' if arch.biases else False)}"
        )
    if scale is not None and "attention.scale" not in arch.extra_metadata(config):
        yield f"scale of attention is {scale:g}, expected null"
    if (qk_norm := layers[0].options["qk_norm"]) in ("layernorm", "per_head"):
        yield f"qk_norm of attention is {qk_norm!r}, expected false, true, 'zero_centered' or 'all_heads'"
    assert config.head_dim is not None
    if arch.needs_square_heads and config.n_heads * config.head_dim != config.d_model:
        yield f"head_dim is {config.head_dim}, expected d_model / n_heads"
    if arch.output_head == "not" and config.tie_embeddings == "none":
        yield "tie_embeddings is 'none', expected 'all'"
    for scaling in {options["scaling"] for options in layer_rope_options(config)} - set(arch.scalings):
        yield f"scaling of position 'rope' is {scaling!r}, expected {', '.join(map(repr, arch.scalings))}"
