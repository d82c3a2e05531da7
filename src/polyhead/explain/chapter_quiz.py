"""Questions of a chapter whose answers the page computes from its own data, and the measures that it knows.

A measure is written ``NAME``, ``NAME:OF`` or, of a lever, ``NAME:LEVER?field=value``, where ``case=largest``
is the case with the largest effect on this page. A question has ``ask``, ``truth``, which is a measure, and
either ``tolerance`` (the share of the truth that an answer may be off) or ``options`` with ``bounds``: option
i is right if i of the bounds are at most the truth.
"""

from __future__ import annotations

from typing import Any, TypedDict, cast
from urllib.parse import parse_qsl

from polyhead.config.yaml_io import parse_yaml

# numbers that the page computes (MEASURES of page/measures.js)
MEASURES = {
    *("config", "tokens", "bytes_per_token", "table_size", "embedding_factor", "scale", "group", "heads"),
    *("hidden_share", "cross_cells", "depth", "branch_share", "active_share", "top_weight", "positions"),
    *("right_guesses", "top_probability", "kv_numbers", "flops", "pass_over_step", "parameters", "steps"),
    *("formula_layer", "all_reduce_bytes", "bubble", "distances", "pages", "empty_share", "family"),
    *("state_numbers", "tie_saving", "loss", "perplexity", "levers", "layer_over_head"),
}
LEVER_MEASURES = {"kl", "changed", "largest_kl"}
TEXT_MEASURES = {"table", "difference", "greedy"}
LEVER_TEXT_MEASURES = {"effect"}
_KEYS = ({"ask", "truth", "tolerance"}, {"ask", "truth", "options", "bounds"})


class Measure(TypedDict, total=False):
    """A measure of the page: its name, what it is of, and the setting of a lever."""

    name: str
    of: str
    setting: dict[str, Any]


class Question(TypedDict, total=False):
    """A question, as the page gets it."""

    ask: str
    truth: Measure
    tolerance: float
    options: list[str]
    bounds: list[float]


def parse_setting(pairs: dict[str, Any]) -> dict[str, Any]:
    """The setting of a lever from the fields of a link, where ``cache.name`` is within ``cache``."""
    setting: dict[str, Any] = {}
    for key, value in pairs.items():
        outer, _, inner = key.partition(".")
        if inner:
            setting.setdefault(outer, {})[inner] = value
        else:
            setting[key] = value
    return setting


def parse_measure(text: str, *, is_text: bool = False) -> Measure:
    """A measure from its text; ``is_text`` allows those that are no numbers."""
    name, _, rest = text.partition(":")
    of, _, query = rest.partition("?")
    levers = LEVER_MEASURES | (LEVER_TEXT_MEASURES if is_text else set())
    if name not in levers | MEASURES | (TEXT_MEASURES if is_text else set()):
        raise ValueError(f"unknown measure {name!r}")
    if bool(query) and name not in levers:
        raise ValueError(f"the measure {name!r} has no setting, got {text!r}")
    measure = Measure(name=name)
    if of:
        measure["of"] = of
    if name in levers:
        measure["setting"] = parse_setting({key: parse_yaml(value) for key, value in parse_qsl(query)})
    return measure


def parse_question(entry: dict[str, Any]) -> Question:
    """A question of the front matter, checked."""
    if set(entry) not in _KEYS:
        raise ValueError(
            f"a question must have ask, truth and either tolerance or options and bounds, got {entry}"
        )
    if "options" in entry and len(entry["options"]) != len(entry["bounds"]) + 1:
        raise ValueError(f"a question must have one option more than bounds, got {entry}")
    return cast(Question, entry | {"truth": parse_measure(entry["truth"])})
