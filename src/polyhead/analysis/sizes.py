"""How many parameters a model has, and in which of its parts, without memory for any of them."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import nn

from polyhead.config import ModelConfig
from polyhead.models import preset
from polyhead.models.build import model_class
from polyhead.nn.feed_forward.mixture import Experts
from polyhead.presets import PUBLISHED
from polyhead.undrawn import Undrawn

LAYER = re.compile(r"\blayers\.(\d+)\.")
HEADS = (
    "head", "out_proj", "transform", "transform_norm", "classifier", "detector", "detector_transform", "follows",
)  # fmt: skip
NAMED = {
    "norm": "norm",
    "proj": "projection",
    "token_proj": "projection",
}  # parts of an embedding that are none themselves
FIRST = ("embedding", "layer", "final_norm", "pooler", "head")


class Part(NamedTuple):
    """Some of a model: what it is, how many of it there are, what one has, and by which formula where there is one."""

    name: str
    times: int
    each: int
    formula: str

    @property
    def total(self) -> int:
        return self.times * self.each


def count(config: ModelConfig) -> int:
    """Parameters of the model that a config describes."""
    return sum(part.total for part in parts(config))


def parts(config: ModelConfig) -> list[Part]:
    """Every parameter once, by part: embeddings, layers (by size, where a pattern makes several kinds), final norms, pooler, head.

    H is d_model, E d_embedding, F d_ff, V the vocabulary, T max_len; A stands for the width of all heads, n_heads x head_dim, and G for
    that of all key/value heads.
    """
    sizes: dict[str, dict[int, int]] = {}  # of each layer, or of the one thing that there is
    for name, parameter in hollow(config).named_parameters():
        layer = LAYER.search(name)
        of_part = sizes.setdefault(_part(name), {})
        number = int(layer[1]) if layer else 0
        of_part[number] = of_part.get(number, 0) + parameter.numel()
    found = []
    for name, each in sizes.items():
        kinds = {size: number for number, size in reversed(each.items())}  # and the first layer of each
        for size, first in sorted(kinds.items(), key=lambda kind: kind[1]):
            title = name if len(kinds) == 1 else f"{name}, as {first + 1}"
            times = sum(one == size for one in each.values())
            found.append(Part(title, times, size, formula(config, name, size)))
    return sorted(found, key=lambda part: next(i for i, word in enumerate(FIRST) if word in part.name))


def active(config: ModelConfig) -> int:
    """Parameters that a token passes: all but those of the experts that it does not have (Jiang et al., 2024, sec. 2.1)."""
    model = hollow(config)
    experts = [part for part in model.modules() if isinstance(part, Experts)]
    idle = sum(
        sum(p.numel() for p in part.experts.parameters())
        * (len(part.experts) - part.top_k)
        // len(part.experts)
        for part in experts
    )
    return sum(p.numel() for p in model.parameters()) - idle


def hollow(config: ModelConfig) -> nn.Module:
    """The model that a config describes, with no numbers in it."""
    with torch.device("meta"), Undrawn():
        return model_class(config)(config)


def formula(config: ModelConfig, name: str, size: int) -> str:
    """The closed form of a part's parameters, if it gives just as many."""
    known = [(form, value) for form, value in _forms(config, name) if value == size]
    return known[0][0] if known else ""


def published(name: str) -> ModelConfig:
    """The config of a preset as its paper counted it."""
    given = PUBLISHED[name]
    return preset(name, given.vocab_size, **({} if given.head else {"head": False}))


def _forms(config: ModelConfig, name: str) -> list[tuple[str, int]]:
    H, V, T = config.d_model, config.vocab_size, config.max_len
    E, e = config.embedding_width, "H" if config.d_embedding is None else "E"
    S, s = config.summed_width, "H" if config.kind == "decoder" else e
    F = config.d_ff or 4 * H
    shape = config.shape(causal=True)
    A, G = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    if "layer" in name:
        n = 2 if name == "decoder layer" and config.kind == "encoder-decoder" else 1  # attentions
        return [
            (f"{4 * n + 8}H² + {4 * n + 5 + 2 * (n + 1)}H", (4 * n + 8) * H * H + (4 * n + 5 + 2 * (n + 1)) * H),
            (f"{4 * n}H² + {4 * n}H + 2HF + F + H + {2 * (n + 1)}H", n * (4 * H * H + 4 * H) + 2 * H * F + F + H + 2 * (n + 1) * H),
            (f"{4 * n}HA + {3 * n}A + {n if n > 1 else ''}H + 2HF + F + H + {2 * (n + 1)}H",
             n * (4 * H * A + 3 * A + H) + 2 * H * F + F + H + 2 * (n + 1) * H),
            (f"{4 * n}HA + 2HF + {n + 1}H", n * 4 * H * A + 2 * H * F + (n + 1) * H),
            (f"{2 * n}HA + {2 * n}HG + 3HF + {n + 1}H", n * (2 * H * A + 2 * H * G) + 3 * H * F + (n + 1) * H),
        ]  # fmt: skip
    square, offset = "H²" if config.d_embedding is None else "HE", config.position.options.get("offset", 0)
    return {
        "token": [(f"V{e}", V * E)],
        "position": [(f"T{s}", T * S), (f"(T + {offset}){s}", (T + offset) * S),
                     ("buckets x n_heads", config.position.options.get("buckets", 0) * config.n_heads)],
        "segment": [(f"{config.segments}{s}", config.segments * S)],
        "norm": [(f"2{s}", 2 * S), (s, S)],
        "projection": [("EH + H", E * H + H), ("EH", E * H)],
        "final_norm": [("2H", 2 * H), ("H", H)],
        "pooler": [("H² + H", H * H + H)],
        "head": [("V", V), (f"{square} + {e} + 2{e} + V", H * E + 3 * E + V), (f"{square} + {e} + 2{e}", H * E + 3 * E),
                 (f"V{e}", V * E), ("HE", H * E), ("HE + VE", H * E + V * E), ("H² + 2H + 1", H * H + 2 * H + 1)],
    }.get(name.removesuffix(" embedding").split(" ")[-1].split(".")[-1], [])  # fmt: skip


def _part(name: str) -> str:
    """The part that a parameter belongs to: encoder.stack.layers.3.attn.q_proj.weight -> layer."""
    if name.startswith("generator."):
        return f"generator {_part(name.removeprefix('generator.'))}"
    words = (
        name.removeprefix("encoder.embedding.").split(".")
        if name.startswith("encoder.embedding.")
        else name.split(".")
    )
    if LAYER.search(name):
        side = "" if "stack" in words else f"{words[0]} "
        return f"{side}layer"
    if words[-2] == "final_norm":
        return "final_norm" if "stack" in words else f"{words[0]}.final_norm"
    if words[0] in (*HEADS, "pooler"):
        return "head" if words[0] in HEADS else "pooler"
    own = name.split("embedding.")[-1].split(".")[0]
    side = words[0].removesuffix("embedding").replace("_", " ") if words[0].endswith("_embedding") else ""
    if own in NAMED:
        return f"{side}embedding {NAMED[own]}"
    return f"{side}{own} embedding" if own != "token" or side == "decoder " else "token embedding"
