"""What the registries say of the part of a step: its name, equation and paper."""

from __future__ import annotations

import inspect
import re
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POOLING, POSITION, Registry
from polyhead.cost.flops import count_forward, count_token
from polyhead.explain.costs import count_step, count_weight_bytes
from polyhead.explain.levers.comparison import compare_outputs, compute_kl, describe_output, rank_references
from polyhead.explain.search import describe_logits, describe_predictions
from polyhead.explain.trace import Step, locate_function
from polyhead.generation.decoding.beam_search import BeamSearchStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.interface import normalize_score
from polyhead.nn.feed_forward.moe import MixtureOfExperts, Router
from polyhead.nn.pooling import Pooler
from polyhead.nn.position.relative import get_alibi_slopes

_FUNCTIONS = {
    "kl": compute_kl,
    "comparison": compare_outputs,
    "rank": rank_references,
    "probability": describe_output,
    "logits": describe_logits,
    "output": describe_predictions,
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


def list_sources() -> dict[str, Any]:
    """File and line of the function that computes each kind of number."""
    return {name: locate_function(function) for name, function in _FUNCTIONS.items()}


_FIELD = re.compile(r"^(Equation|Paper|When|Recipe|Options):", re.M)


def describe_part(config: ModelConfig, step: Step) -> dict[str, Any]:
    """The registered name of the part of a step, and the equation, paper and summary of its docstring."""
    registry, choice = find_choice(config, step)
    name = None if choice is None else choice.name
    notes: dict[str, Any] = {"part": name, "formula": f"{step.kind}.{name}" if name else step.kind}
    return notes | (read_notes(registry.get(name)) if registry is not None and name else read_notes(None))


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
    """The summary, the equation and the paper in the docstring of a part; None for what it lacks."""
    text, *fields = _FIELD.split(inspect.cleandoc(part.__doc__ or ""))
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    equation, paper = values.get("Equation"), values.get("Paper")
    summary = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
    return {
        "about": summary or None,
        "equation": inspect.cleandoc(equation) if equation else None,
        "paper": " ".join(paper.split()) if paper else None,
    }
