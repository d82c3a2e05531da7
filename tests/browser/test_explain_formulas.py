"""The formulas of the numbers on the page of ``explain``: with the numbers put in they give what is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.browser.conftest import CORNERS, check_accessibility
from tests.browser.test_explain_page import READ_NUMBERS, find_station, open_walk
from tests.explain.explain_helpers import TARGET, TEXT, make_run

from polyhead.explain.document import explain
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

Open = Callable[..., Any]
DESIGNS: dict[str, dict[str, Any]] = {
    "beams": {"generation": {"beam_size": 3, "n_best": 2, "length_penalty": 0.6, "max_length_extra": 4}},
    "samples": {"kind": "decoder", "generation": {"temperature": 0.7, "top_k": 5, "max_new_tokens": 6}},
    "classes": {"kind": "encoder", "labels": ["bad", "good", "fair"]},
}
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
FUNCTIONS = {"exp": math.exp, "ln": math.log, "min": min, "floor": math.floor}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, dict[str, Any], Path]]:
    """The run, the document with the cases of levers and the page of a design."""
    place, made = tmp_path_factory.mktemp("formulas"), {}

    def make_one(design: str) -> tuple[Any, dict[str, Any], Path]:
        if design not in made:
            run = make_run(**DESIGNS[design])
            document = explain(run, TEXT, TARGET if run.kind == "encoder-decoder" else None)
            made[design] = run, document, save_page(place / f"{design}.html", render_walk_page(document))
        return made[design]

    return make_one


def compute_side(text: str) -> float | None:
    """The number that one side of a formula gives; None if it has letters, or only some of its terms."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("−", "-").replace("·10", "*10")
    text = re.sub(r"10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10**({m[1].translate(SUPERSCRIPTS)})", text)
    text = re.sub(r"([\d.]+)\u2009([kMG]?)B?", lambda m: f"({m[1]}*{UNITS.get(m[2], 1)})", text)
    text = re.sub(r"√([\d.]+)", r"(\1**0.5)", text)
    text = text.replace("·", "*").replace("^", "**").replace("⌊", "floor(").replace("⌋", ")")
    if "…" in text or set(re.findall(r"[^\W\d_]+", text)) - FUNCTIONS.keys():
        return None
    return float(eval(text, {"__builtins__": {}}, FUNCTIONS))


SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def check_numbers(shown: list[dict[str, Any]], near: float = 0.02) -> int:
    """Every number has words, a shape and a source; both sides of its formulas are equal, to their digits.

    How many formulas ended in the number that is shown is returned.
    """
    n_complete = 0
    for one in shown:
        assert one["lines"] or one["words"], one
        assert {"shape", "line of source"} <= set(one["facts"]), one
        assert not re.search(r"NaN|undefined|null|Infinity", " ".join([one["title"], *one["lines"]])), one
        for line in one["lines"]:
            sides = [compute_side(side) for side in line.split(" = ")]
            known = [side for side in sides if side is not None]
            assert all(side == pytest.approx(known[-1], rel=near, abs=1e-6) for side in known), (line, one)
            is_value = bool(known) and known[-1] == pytest.approx(float(one["value"]), rel=1e-2, abs=1e-6)
            n_complete += len(known) > 1 and is_value
    return n_complete


@pytest.mark.slow
@pytest.mark.parametrize("design", ["beams", "samples"])
@pytest.mark.parametrize("lever", LEVERS)
def test_the_numbers_of_a_lever_follow_from_their_formulas(
    design: str, lever: str, make: Callable[..., Any], open_page: Open
) -> None:
    _, document, path = make(design)
    page = open_walk(open_page, path)
    find_station(page, "levers")
    (part,) = [one for one in document["levers"]["levers"] if one["name"] == lever]
    if part["reason"]:
        pytest.skip(part["reason"]["en"])
    for case in range(min(len(part["cases"]), 9)):
        page.evaluate("([lever, leverCase]) => explain.go({ lever, leverCase })", [lever, case])
        page.evaluate("document.querySelectorAll('details.numbers').forEach((one) => { one.open = true; })")
        assert check_numbers(page.evaluate(READ_NUMBERS, "#card-lever")) > 2, case


@pytest.mark.slow
@pytest.mark.parametrize("design", ["beams", "samples", "classes"])
def test_the_numbers_of_output_decoding_and_cost_follow_from_their_formulas(
    design: str, make: Callable[..., Any], open_page: Open
) -> None:
    _, document, path = make(design)
    page = open_walk(open_page, path)
    find_station(page, "output")
    assert check_numbers(page.evaluate(READ_NUMBERS, "#card-probabilities")) > 2
    find_station(page, "cost")
    assert check_numbers(page.evaluate(READ_NUMBERS, "#stage")) > 8
    for step in range(len(document["generation"]["steps"]) if document["generation"] else 0):
        page.evaluate("step => explain.go({ station: 'generation', step })", step)
        assert check_numbers(page.evaluate(READ_NUMBERS, "#stage")) > 10


@pytest.mark.slow
def test_the_kl_of_the_page_is_that_of_two_passes(make: Callable[..., Any], open_page: Open) -> None:
    """A skipped layer: KL, ranks and probabilities of the shown table from the model without it."""
    run, document, path = make("samples")
    ids = torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]])
    layers = run.model.stack.layers
    with torch.no_grad():
        plain = run.model(ids)[0].double().log_softmax(-1)
        run.model.stack.layers = layers[1:]
        changed = run.model(ids)[0].double().log_softmax(-1)
        run.model.stack.layers = layers
    page = open_walk(open_page, path)
    find_station(page, "levers")
    page.evaluate("explain.go({ lever: 'layer', leverCase: 0 })")
    shown = page.evaluate(READ_NUMBERS, "#card-lever table")
    kl = (changed.exp() * (changed - plain)).sum(-1)
    assert [float(one["value"]) for one in shown if one["title"].startswith("KL")] == pytest.approx(
        kl.tolist(), rel=1e-4
    )
    labels = ids[0, 1:].tolist()
    ranks = [
        [1 + int((rows[i] > rows[i, label]).sum()) for rows in (plain, changed)]
        for i, label in enumerate(labels)
    ]
    found = [int(one["value"]) for one in shown if one["title"].startswith("Rank")]
    assert found == [rank for pair in ranks for rank in pair]
    p = [float(one["value"]) for one in shown if one["title"].startswith("Probability")]
    best = torch.stack([plain.amax(-1), changed.amax(-1)], 1).exp().flatten()
    assert p == pytest.approx(best.tolist(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["window", "h2o"])
def test_arrow_keys_read_how_many_keys_are_kept(case: str, make: Callable[..., Any], open_page: Open) -> None:
    _, document, path = make("samples")
    (lever,) = [one for one in document["levers"]["levers"] if one["name"] == "cache"]
    at, detail = next(
        (i, one["detail"]) for i, one in enumerate(lever["cases"]) if one["setting"]["cache"]["name"] == case
    )
    page = open_walk(open_page, path)
    find_station(page, "levers")
    page.evaluate("leverCase => explain.go({ lever: 'cache', leverCase })", at)
    page.locator("[data-focus='kept-1']").focus()
    page.keyboard.press("ArrowUp")
    marks = detail["visible"][0][-2]
    read = page.locator("#inspector output").get_attribute("data-value")
    assert int(read) == sum(mark != "0" for mark in marks) < len(marks)


@pytest.mark.slow
def test_the_curves_of_operations_are_read_by_arrow_keys(make: Callable[..., Any], open_page: Open) -> None:
    _, document, path = make("samples")
    (lever,) = [one for one in document["levers"]["levers"] if one["name"] == "prefill"]
    page = open_walk(open_page, path)
    find_station(page, "levers")
    page.evaluate("explain.go({ lever: 'prefill', leverCase: 0 })")
    page.locator("[data-focus='step-flops']").focus()
    for key, name, n in (
        ("Home", "step_flops", 0),
        ("ArrowRight", "step_flops", 1),
        ("ArrowDown", "recompute_flops", 1),
    ):
        page.keyboard.press(key)
        read = page.locator("#inspector output").get_attribute("data-value")
        assert int(read) == lever["cases"][0]["detail"][name][n]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"kind": "encoder", "position": {"name": "t5", "buckets": 8, "max_distance": 9}},
        {"kind": "decoder", "position": {"name": "t5", "buckets": 8, "max_distance": 9}},
        {"kind": "encoder", "position": {"name": "shaw", "clip": 3}},
    ],
    ids=str,
)
def test_a_score_shows_the_row_of_the_table_that_its_pair_uses(
    config: dict[str, Any], open_page: Open, tmp_path: Path
) -> None:
    run = make_run(**config)
    document = explain(run, TEXT, has_lever_cases=False)
    page = open_walk(open_page, save_page(tmp_path / "page.html", render_walk_page(document)))
    step = next(step for step in document["walk"] if step["kind"] == "attention")
    n = len(document["sides"][0]["tokens"])
    expected = [
        [find_row(s - t, **config["position"], causal=config["kind"] == "decoder") for s in range(n)]
        for t in range(n)
    ]
    find_station(page, next(s["path"] for s in document["walk"] if s["kind"] == "attention"))
    page.evaluate("explain.go({ head: 1 })")
    page.locator("#card-scores .heat").focus()
    page.keyboard.press("Home")
    for _ in range(n):
        page.keyboard.press("ArrowUp")
    bias = page.evaluate("name => [...explain.value(name).data]", step["values"]["bias"])
    for query in range(n):
        for key in range(n):
            lines = page.locator("#inspector .formula").all_inner_texts()
            if key <= query or config["kind"] == "encoder":
                rule, own = next((a, b) for a, b in pairwise(lines) if b.startswith("b = "))
                assert f"[{expected[query][key]}" in own, lines
                sides = [compute_side(side) for side in rule.replace("±3", "").split(" = ")]
                assert sides[-1] == expected[query][key], lines
                assert sides[0] in (None, sides[-1]), lines
                assert compute_side(own.split(" = ")[-1]) == pytest.approx(
                    bias[n * (n + query) + key], rel=1e-3
                )
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
    find_station(page, "position-0")
    check_accessibility(page, *CORNERS)


def find_row(distance: int, name: str, causal: bool, clip: int = 0, **options: Any) -> int:
    """Of T5 by transformers, of Shaw by clipping (Shaw et al., 2018, section 3.2)."""
    if name == "shaw":
        return max(-clip, min(clip, distance)) + clip
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    bucket = t5.T5Attention._relative_position_bucket(
        torch.tensor([[distance]]),
        bidirectional=not causal,
        num_buckets=options["buckets"],
        max_distance=options["max_distance"],
    )
    return int(bucket)


@pytest.mark.slow
def test_tab_stops_once_in_a_table_and_arrows_move_in_it(make: Callable[..., Any], open_page: Open) -> None:
    page = open_walk(open_page, make("samples")[2])
    find_station(page, "cost")
    stops = page.locator("#card-cost table .pointable[tabindex='0']")
    assert stops.count() == 1
    stops.focus()
    first, second = page.locator("#card-cost tbody th").all_inner_texts()[:2]
    for key, title in (
        ("ArrowRight", f"{first}: weights"),
        ("ArrowRight", f"{first}: activations"),
        ("ArrowDown", f"{second}: activations"),
        ("ArrowLeft", f"{second}: weights"),
        ("ArrowUp", f"{first}: weights"),
    ):
        page.keyboard.press(key)
        assert page.locator("#inspector h2").inner_text() == title
