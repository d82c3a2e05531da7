"""What is known of a step: operations by the cost model, bytes, and what the registries say of its part."""

from __future__ import annotations

import inspect
import re
from math import prod
from typing import Any

from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POOLING, POSITION, RESIDUAL, Registry
from polyhead.cost.flops import count_forward, count_stacks, count_token
from polyhead.cost.workload import BatchShape, OpCount, UnknownFormulaError
from polyhead.explain.lens import explain_lens, share_logits
from polyhead.explain.levers.interface import compare_outputs, compute_kl, describe_output, rank_references
from polyhead.explain.patching import patch_stack
from polyhead.explain.search import describe_logits, describe_predictions
from polyhead.explain.trace import Facts, Step, locate_function
from polyhead.generation.decoding.beam_search import BeamSearchStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.request import normalize_score
from polyhead.nn.feed_forward.moe import MixtureOfExperts, Router
from polyhead.nn.pooling import Pooler
from polyhead.nn.position.relative import get_alibi_slopes

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
    "pooler": "pooler",
    "classifier": "classes",
    "detector": "replaced or not",
}
"""Operation counts outside of the layers, by the name of the part."""


def count_costs(config: ModelConfig, lengths: list[int]) -> Facts:
    """Operations of the whole pass, its prefill and one decoding step after it; None without a formula.

    The prefill of an encoder-decoder is the source and the first token of the target.
    """
    batch, step, prefill = _batch_shape(lengths), None, None
    try:
        total = sum(work.total for work in count_forward(config, batch))
        if config.kind in ("decoder", "encoder-decoder"):
            start = batch._replace(length=1) if batch.source else batch
            parts = {work.name: work.total for work in count_forward(config, start)}
            prefill = {"flops": sum(parts.values()), "parts": parts}
        if config.kind in ("decoder", "encoder-decoder"):
            parts = {work.name: work.total for work in count_token(config, lengths[-1] + 1, batch.source)}
            step = {"flops": sum(parts.values()), "parts": parts}
    except UnknownFormulaError:
        total = None
    return {"flops": total, "prefill": prefill, "decode_step": step}


def count_step(
    config: ModelConfig, step: Step, lengths: list[int], itemsize: int, counted_ids: set[int]
) -> Facts:
    """Operations of a step, bytes of its weights and of its input and output.

    ``counted_ids`` are the parameters of the steps before: ``shared_bytes`` are those of its weights that are
    among them, and the others are added to it.
    """
    weights = _list_weights(step)
    shared = [p for p in weights if id(p) in counted_ids]
    counted_ids.update(map(id, weights))
    parts = _find_counts(config, step, _batch_shape(lengths))
    numbers = sum(prod(shape) for shape in (step.shape_in, step.shape_out) if shape)
    return {
        "flops": None if parts is None else sum(parts.values()),
        "weight_bytes": sum(p.numel() * p.element_size() for p in weights),
        "shared_bytes": sum(p.numel() * p.element_size() for p in shared),
        "activation_bytes": numbers * itemsize,
        "parts": parts or {},
    }


def count_weight_bytes(module: nn.Module) -> int:
    """Bytes of the parameters of a module, shared ones once."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _list_weights(step: Step) -> list[nn.Parameter]:
    """The parameters of the part of a step, without those of parts of it that have steps of their own."""
    if step.module is None:
        return []
    inner = ("position.", "norm.", "proj.") if step.kind == "embedding" else ("position.",)
    own = step.module.named_parameters(recurse=step.kind != "residual")
    return [p for name, p in own if not name.startswith(inner)]


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


_FUNCTIONS = {
    "kl": compute_kl,
    "comparison": compare_outputs,
    "rank": rank_references,
    "probability": describe_output,
    "logits": describe_logits,
    "output": describe_predictions,
    "lens": explain_lens,
    "shares": share_logits,
    "patching": patch_stack,
    "vector": Pooler.forward,
    "router": Router.compute_logits,
    "route": MixtureOfExperts.route,
    "slopes": get_alibi_slopes,
    "beams": BeamSearchStrategy.advance,
    "sampling": Sampling.apply,
    "score": normalize_score,
    "pass": count_forward,
    "decode_step": count_token,
    "step": count_step,
    "weights": count_weight_bytes,
}


def list_sources() -> Facts:
    """File and line of the function that computes each kind of number."""
    return {name: locate_function(function) for name, function in _FUNCTIONS.items()}


_FIELD = re.compile(r"^(Equation|Paper|When|Recipe|Options):", re.M)


def describe_part(config: ModelConfig, step: Step) -> Facts:
    """The registered name of the part of a step, and the paper and summary of its docstring."""
    registry, choice = find_choice(config, step)
    name = None if choice is None else choice.name
    return {"part": name, **read_notes(registry.get(name) if registry is not None and name else None)}


def find_choice(config: ModelConfig, step: Step) -> tuple[Registry[Any] | None, Choice | None]:
    """The registry of the part of a step, and what the config chose from it."""
    layer = step.place.layer
    spec = config if layer is None else config.layer_config(layer)
    has_cross = step.place.stack == "decoder"
    if step.kind in ("attention", "linear_attention") or step.place.role in ("attn", "cross"):
        if step.place.role == "cross":
            return ATTENTION, config.cross_attention or config.attention
        decoder = config.decoder_attention if has_cross else None
        return ATTENTION, decoder or spec.attention
    if step.kind == "position":
        own = config.layer_override(layer).position if layer is not None else None
        return POSITION, own or config.position
    if step.kind == "residual":
        return RESIDUAL, config.residual
    if step.kind == "norm":
        return NORM, config.norm
    if step.kind in ("feed_forward", "moe") or step.place.role == "ffn":
        return FEED_FORWARD, config.feed_forward
    if step.kind in ("recurrent", "conv"):
        return BLOCK, spec.block_choice(has_cross)
    if step.kind == "pooling":
        return POOLING, config.pooling or Choice("first")
    return None, None


def read_notes(part: Any) -> dict[str, str | None]:
    """The summary and the paper in the docstring of a part; None for what it lacks."""
    text, *fields = _FIELD.split(inspect.cleandoc(part.__doc__ or ""))
    paper = dict(zip(fields[::2], fields[1::2], strict=True)).get("Paper")
    summary = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
    return {"about": summary or None, "paper": " ".join(paper.split()) if paper else None}
