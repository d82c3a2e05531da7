"""The line of source of each kind of number is that of the function that computes it."""

from pathlib import Path

import polyhead
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.sources import list_sources
from polyhead.explain.trace import locate_function


def read_function_name(source):
    path = Path(polyhead.__file__).parent / source["file"]
    line = path.read_text(encoding="utf-8").splitlines()[source["line"] - 1]
    assert line.strip().startswith("def ")
    return line.strip().removeprefix("def ").split("(")[0]


def test_sources_name_their_functions():
    assert {name: read_function_name(source) for name, source in list_sources().items()} == {
        "kl": "compute_kl",
        "comparison": "compare_outputs",
        "rank": "rank_references",
        "probability": "describe_output",
        "logits": "describe_logits",
        "output": "describe_predictions",
        "vector": "forward",
        "router": "compute_logits",
        "route": "route",
        "slopes": "get_alibi_slopes",
        "beams": "advance",
        "sampling": "apply",
        "score": "normalize_score",
        "pass": "count_forward",
        "decode_step": "count_token",
        "step": "count_step",
        "weights": "count_weight_bytes",
    }


def test_lever_source_is_its_computation():
    names = {name: read_function_name(locate_function(lever.compute)) for name, lever in LEVERS.items()}
    assert (names["head"], names["positions"]) == ("_compute_head", "remove_positions")
    assert locate_function(None) is None
