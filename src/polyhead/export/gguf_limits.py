"""Which architecture of llama.cpp runs a model, and what it has no words for."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.config import ModelConfig
from polyhead.errors import UserError, show
from polyhead.export.gguf_archs import ARCHS, NAMES, Arch
from polyhead.export.gguf_keys import ropes
from polyhead.hf import writing
from polyhead.hf.pattern import part
from polyhead.registry import Choice


def arch_of(config: ModelConfig) -> tuple[Arch, ModelConfig]:
    """The architecture that runs a model, and the model as it is said there; a UserError names the parts in the way."""
    if config.kind != "decoder":
        raise UserError(f"llama.cpp gets language models alone; this model is kind={config.kind!r}")
    arch, said, found = nearest_arch(config)
    if found:
        raise UserError(
            f"llama.cpp has no model of these parts; the nearest is {arch.name!r}: {'; '.join(found)}"
        )
    return arch, said


def nearest_arch(config: ModelConfig) -> tuple[Arch, ModelConfig, list[str]]:
    """The architecture that has most of a language model, the model as it is said there, and a line for each part it lacks."""
    tried: list[tuple[Arch, ModelConfig, list[str]]] = []
    for family, arch in ARCHS.items():
        said = _with_zeros(config) if arch.zeros else config
        try:
            found = list(dict.fromkeys([*writing.in_the_way(said, family), *in_the_way(said, arch)]))
        except UserError:  # it has no such model at all
            continue
        tried.append((arch, said, found))
        if not found:
            break
    return min(tried, key=lambda one: len(one[2]))


def _with_zeros(config: ModelConfig) -> ModelConfig:
    """The same with all biases, which are nought where they were not."""
    parts = {name: getattr(config, name) for name in ("attention", "norm", "feed_forward")}
    return config.model_copy(
        update={
            name: Choice(choice.name, **{**choice.options, "bias": True})
            for name, choice in parts.items()
            if "bias" in choice.options
        }
    )


def in_the_way(config: ModelConfig, arch: Arch) -> Iterator[str]:
    """One line for each part or option that the architecture has not, though its family may have it."""
    layers = [part(config, "attention", i) for i in range(config.n_layers)]
    if any(choice.name != "softmax" for choice in layers):  # no family has it
        return
    yield from arch.limits(config)
    if config.feed_forward.name not in arch.feed_forward:
        yield f"feed_forward is {config.feed_forward.name!r}, there {' or '.join(map(repr, arch.feed_forward))}"
    elif config.feed_forward.options.get("tanh") is False and config.feed_forward.name == "geglu":
        yield "tanh of feed_forward is false, there true"
    if config.feed_forward.options.get("bias") and "up_proj" not in arch.biases:
        yield "bias of feed_forward is true, there false"
    if not arch.windows and any(choice.options["window"] for choice in layers):
        yield "attention has windows, there none"
    biased, scale = (layers[0].options[name] for name in ("bias", "scale"))
    if (biased and NAMES[0] not in arch.biases) or (biased in (True, "o") and "o_proj" not in arch.biases):
        yield f"bias of attention is {show(biased)}, there {show('qkv' if arch.biases else False)}"
    if scale is not None and "attention.scale" not in arch.keys(config):
        yield f"scale of attention is {scale:g}, there null"
    if (normed := layers[0].options["qk_norm"]) in ("layer", "each"):
        yield f"qk_norm of attention is {normed!r}, there false, true, 'around_one' or 'whole'"
    assert config.head_dim is not None
    if arch.square and config.n_heads * config.head_dim != config.d_model:
        yield f"head_dim is {config.head_dim}, there d_model / n_heads"
    if arch.output == "not" and config.tie_embeddings == "none":
        yield "tie_embeddings is 'none', there 'all'"
    for scaling in {options["scaling"] for options in ropes(config)} - set(arch.scalings):
        yield f"scaling of position 'rope' is {scaling!r}, there {', '.join(map(repr, arch.scalings))}"
