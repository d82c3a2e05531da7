"""The line of source of each kind of number is that of the function that computes it."""

from __future__ import annotations

from pathlib import Path

import polyhead
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.sources import list_sources
from polyhead.explain.trace import locate_function

PACKAGE = Path(polyhead.__file__).parent


def read_line(source: dict) -> str:
    return (PACKAGE / source["file"]).read_text(encoding="utf-8").splitlines()[source["line"] - 1]


def test_each_number_has_the_line_of_its_function() -> None:
    sources = list_sources()
    names = {
        name: read_line(source).split("(")[0].removeprefix("    def ").removeprefix("def ")
        for name, source in sources.items()
    }
    assert names == {
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


def test_a_lever_has_the_line_of_what_it_changes() -> None:
    lines = {name: read_line(locate_function(lever.compute) or {}) for name, lever in LEVERS.items()}
    assert lines["head"].startswith("def _compute_head(")
    assert lines["positions"].startswith("def remove_positions(")
    assert all(line.startswith("def ") for line in lines.values())
    assert locate_function(None) is None
