"""What each step of a walk costs: operations by the closed forms of the cost model, and bytes."""

from __future__ import annotations

from typing import Any

from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.cost.flops import count_forward, count_stacks, count_token
from polyhead.cost.workload import BatchShape, OpCount, UnknownFormulaError
from polyhead.explain.trace import Step

_PARTS = {
    "attention": ("projections", "scores and values"),
    "linear_attention": ("projections", "features and sums"),
    "feed_forward": ("feed-forward",),
    "moe": ("feed-forward",),
    "recurrent": ("recurrence",),
    "conv": ("convolution",),
}
"""Operation counts of a layer that belong to a kind of step."""
_ENDS = {
    "embedding": "embeddings",
    "out_proj": "transform",
    "transform": "transform",
    "head": "head",
    "pooler": "pooler and classes",
    "detector": "replaced or not",
}
"""Operation counts outside of the layers, by the name of the part."""


def count_costs(config: ModelConfig, lengths: list[int]) -> dict[str, Any]:
    """Operations of the whole pass, and of one decoding step after it; None where a part has no formula."""
    batch, step = _batch_shape(lengths), None
    try:
        total = sum(work.total for work in count_forward(config, batch))
        if config.kind in ("decoder", "encoder-decoder"):
            parts = {work.name: work.total for work in count_token(config, lengths[-1] + 1, batch.source)}
            step = {"flops": sum(parts.values()), "parts": parts}
    except UnknownFormulaError:
        total = None
    return {"flops": total, "decode_step": step}


def count_step(config: ModelConfig, step: Step, lengths: list[int], itemsize: int) -> dict[str, Any]:
    """Operations of a step, bytes of its weights and of its input and output."""
    parts = _find_counts(config, step, _batch_shape(lengths))
    numbers = sum(_product(shape) for shape in (step.shape_in, step.shape_out))
    return {
        "flops": None if parts is None else sum(parts.values()),
        "weight_bytes": _read_bytes(step, itemsize),
        "activation_bytes": numbers * itemsize,
        "parts": parts or {},
    }


def count_weight_bytes(module: nn.Module) -> int:
    """Bytes of the parameters of a module, shared ones once."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _read_bytes(step: Step, itemsize: int) -> int:
    """Bytes of the weights that a step reads: of an embedding and of added positions a row for each token."""
    if step.kind == "residual" or step.module is None:
        return 0
    if step.kind == "embedding" or (step.kind == "position" and step.shape_out):
        return _product(step.shape_out) * itemsize
    own = dict(step.module.named_parameters())
    return sum(p.numel() * p.element_size() for name, p in own.items() if not name.startswith("position."))


def _batch_shape(lengths: list[int]) -> BatchShape:
    return BatchShape(1, lengths[-1], lengths[0] if len(lengths) > 1 else 0)


def _find_counts(config: ModelConfig, step: Step, batch: BatchShape) -> dict[str, int] | None:
    """Operations of a step by name; empty without matrix products, None if there is no formula."""
    try:
        if step.place.layer is None:
            name = _ENDS.get(step.place.role)
            return _select(count_forward(config, batch), (name,), "") if name else {}
        if step.kind not in _PARTS:
            return None if step.kind == "unknown" else {}
        layers = count_stacks(config, batch)[step.place.side]
    except UnknownFormulaError:
        return None
    works = layers[step.place.layer]
    prefix = f"{step.place.stack} " if config.kind == "encoder-decoder" else ""
    counts = _select(works, _PARTS[step.kind], prefix + ("cross " if step.memory_side is not None else ""))
    # two networks in opposite directions are counted as one
    return {name: flops // step.facts.get("networks", 1) for name, flops in counts.items()}


def _select(works: list[OpCount], names: tuple[str, ...], prefix: str) -> dict[str, int]:
    """The counts of these names, without their prefix."""
    return {
        name: sum(work.total for work in works if work.name == prefix + name)
        for name in names
        if any(work.name == prefix + name for work in works)
    }


def _product(shape: Any) -> int:
    total = 1 if shape else 0
    for size in shape:
        total *= size
    return total
