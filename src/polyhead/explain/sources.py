"""Where the numbers of the page that belong to no part of the model are computed."""

from __future__ import annotations

from typing import Any

from polyhead.cost.flops import count_forward, count_token
from polyhead.explain.costs import count_step, count_weight_bytes
from polyhead.explain.levers.comparison import compare_outputs, compute_kl, describe_output, rank_references
from polyhead.explain.predictions import describe_logits, describe_predictions
from polyhead.explain.trace import locate_function
from polyhead.generation.decoding.beam_search import BeamSearchStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.interface import normalize_score
from polyhead.nn.feed_forward.moe import MixtureOfExperts, Router
from polyhead.nn.pooling import Pooler
from polyhead.nn.position.alibi import get_alibi_slopes

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
