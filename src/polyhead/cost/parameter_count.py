"""Count the parameters of a model, in total and by part, without allocating them."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.config.presets import PRESET_INFO
from polyhead.models import preset_config
from polyhead.models.build import model_class
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.init import SkipInit

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_HEAD_MODULES = (
    "head", "out_proj", "transform", "transform_norm", "classifier", "detector", "detector_transform",
    "follows",
)  # fmt: skip
# submodules of an embedding that are not embeddings themselves
_EMBEDDING_PARTS = {
    "norm": "norm",
    "proj": "projection",
    "token_proj": "projection",
}
_PART_ORDER = ("embedding", "layer", "final_norm", "projection", "pooler", "head")


class ParameterGroup(NamedTuple):
    """A group of parameters: its name, its count, the parameters of one, and their formula or ""."""

    name: str
    times: int
    params_each: int
    formula: str

    @property
    def total(self) -> int:
        return self.times * self.params_each


def count_model_parameters(config: ModelConfig) -> int:
    """Number of parameters of the model of a config."""
    return sum(part.total for part in group_parameters(config))


def group_parameters(config: ModelConfig) -> list[ParameterGroup]:
    """Group all parameters by part: embeddings, layers (one group per size), final norms, pooler, head.

    Each parameter counts once. H is d_model, E d_embedding, F d_ff, V the vocabulary, T max_len, A the width
    of all heads (n_heads x head_dim), G that of all key/value heads.
    """
    sizes: dict[str, dict[int, int]] = {}  # {group: {layer number, 0 outside of layers: parameters}}
    for name, parameter in meta_model(config).named_parameters():
        layer = _LAYER.search(name)
        of_part = sizes.setdefault(_group_name(name), {})
        number = int(layer[1]) if layer else 0
        of_part[number] = of_part.get(number, 0) + parameter.numel()
    groups = []
    for name, each in sizes.items():
        kinds = {size: number for number, size in reversed(each.items())}  # size -> first layer of that size
        for size, first in sorted(kinds.items(), key=lambda kind: kind[1]):
            title = name if len(kinds) == 1 else f"{name}, as {first + 1}"
            times = sum(layer_size == size for layer_size in each.values())
            # the first formula that gives exactly this size
            formulas = (formula for formula, value in _known_formulas(config, name) if value == size)
            groups.append(ParameterGroup(title, times, size, next(formulas, "")))
    return sorted(groups, key=lambda part: next(i for i, word in enumerate(_PART_ORDER) if word in part.name))


def count_active_parameters(config: ModelConfig) -> int:
    """Number of parameters that one token uses: all except those of experts that are not selected.

    Jiang et al., 2024, sec. 2.1.
    """
    model = meta_model(config)
    experts = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
    idle = sum(
        sum(p.numel() for p in part.experts.parameters())
        * (len(part.experts) - part.top_k)
        // len(part.experts)
        for part in experts
    )
    return sum(p.numel() for p in model.parameters()) - idle


def meta_model(config: ModelConfig) -> nn.Module:
    """Build the model of a config on the meta device."""
    with torch.device("meta"), SkipInit():
        return model_class(config)(config)


def published_config(name: str) -> ModelConfig:
    """The config of a preset as counted in its paper."""
    info = PRESET_INFO[name]
    return preset_config(name, info.vocab_size, **({} if info.has_lm_head else {"lm_head": False}))


def _known_formulas(config: ModelConfig, name: str) -> list[tuple[str, int]]:
    H, V, T = config.d_model, config.vocab_size, config.max_len
    E, e = config.embedding_width, "H" if config.d_embedding is None else "E"
    S, s = config.position_width, "H" if config.kind == "decoder" else e
    F = config.d_ff or 4 * H
    shape = config.attention_shape(causal=True)
    A, G = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    if "layer" in name:
        n = 2 if name == "decoder layer" and config.kind == "encoder-decoder" else 1  # attentions
        return [
            (f"{4 * n + 8}H² + {4 * n + 5 + 2 * (n + 1)}H",
                (4 * n + 8) * H * H + (4 * n + 5 + 2 * (n + 1)) * H),
            (f"{4 * n}H² + {4 * n}H + 2HF + F + H + {2 * (n + 1)}H",
                n * (4 * H * H + 4 * H) + 2 * H * F + F + H + 2 * (n + 1) * H),
            (f"{4 * n}HA + {3 * n}A + {n if n > 1 else ''}H + 2HF + F + H + {2 * (n + 1)}H",
             n * (4 * H * A + 3 * A + H) + 2 * H * F + F + H + 2 * (n + 1) * H),
            (f"{4 * n}HA + 2HF + {n + 1}H", n * 4 * H * A + 2 * H * F + (n + 1) * H),
            (f"{2 * n}HA + {2 * n}HG + 3HF + {n + 1}H",
                n * (2 * H * A + 2 * H * G) + 3 * H * F + (n + 1) * H),
        ]  # fmt: skip
    square, offset = "H²" if config.d_embedding is None else "HE", config.position.options.get("offset", 0)
    return {
        "token": [(f"V{e}", V * E)],
        "position": [(f"T{s}", T * S), (f"(T + {offset}){s}", (T + offset) * S),
                     ("buckets x n_heads", config.position.options.get("buckets", 0) * config.n_heads)],
        "segment": [(f"{config.n_segments}{s}", config.n_segments * S)],
        "norm": [(f"2{s}", 2 * S), (s, S)],
        "projection": [("EH + H", E * H + H), ("EH", E * H)],
        "final_norm": [("2H", 2 * H), ("H", H)],
        "pooler": [("H² + H", H * H + H)],
        "head": [("V", V), (f"{square} + {e} + 2{e} + V", H * E + 3 * E + V), (f"{square} + {e} + 2{e}",
            H * E + 3 * E),
                 (f"V{e}", V * E), ("HE", H * E), ("HE + VE", H * E + V * E), ("H² + 2H + 1",
                     H * H + 2 * H + 1)],
    }.get(name.removesuffix(" embedding").split(" ")[-1].split(".")[-1], [])  # fmt: skip


def _group_name(name: str) -> str:
    """The group of a parameter: encoder.stack.layers.3.attn.q_proj.weight -> layer."""
    if name.startswith("generator."):
        return f"generator {_group_name(name.removeprefix('generator.'))}"
    words = (
        name.removeprefix("encoder.embedding.").split(".")
        if name.startswith("encoder.embedding.")
        else name.split(".")
    )
    if _LAYER.search(name):
        side = "" if "stack" in words else f"{words[0]} "
        return f"{side}layer"
    if words[-2] == "final_norm":
        return "final_norm" if "stack" in words else f"{words[0]}.final_norm"
    if words[0] == "encoder_proj":
        return "encoder projection"
    if words[0] in (*_HEAD_MODULES, "pooler"):
        return "head" if words[0] in _HEAD_MODULES else "pooler"
    part = name.split("embedding.")[-1].split(".")[0]
    side = words[0].removesuffix("embedding").replace("_", " ") if words[0].endswith("_embedding") else ""
    if part in _EMBEDDING_PARTS:
        return f"{side}embedding {_EMBEDDING_PARTS[part]}"
    return f"{side}{part} embedding" if part != "token" or side == "decoder " else "token embedding"
