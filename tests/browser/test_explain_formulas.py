"""The formulas of the numbers on the page of ``explain``: with the numbers put in they give what is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.browser.conftest import CORNERS, check_accessibility
from tests.browser.test_explain_page import READ_DRAWINGS, READ_NUMBERS, find_station, open_walk
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
    "replaced": {"kind": "encoder", "generator_layers": 1},
    "grouped": {"kind": "decoder", "n_kv_heads": 2},
    "experts": {"kind": "decoder", "feed_forward": {"name": "moe", "n_experts": 5, "top_k": 3}},
    "plain experts": {
        "kind": "decoder",
        "feed_forward": {"name": "moe", "n_experts": 4, "top_k": 1, "normalize": False, "balance": False},
    },
}
DRAWN_DESIGNS: dict[str, dict[str, Any]] = {
    "Vaswani et al.": {},
    "shaw": {"kind": "decoder", "position": {"name": "shaw", "clip": 3}},
    "rope": {"kind": "decoder", "position": "rope", "norm": "rmsnorm", "feed_forward": "swiglu"},
    "linear attention": {"kind": "decoder", "attention": "linear", "position": "sinusoidal"},
    # of so few tokens that the sums of its state have all their terms
    "short linear attention": {"kind": "decoder", "attention": "linear", "position": "none"},
    "exp": {"kind": "decoder", "attention": "kernel", "position": "rope"},
    # heads of 3 features, so that the products have all their terms
    "elu": {
        "kind": "encoder",
        "attention": {"name": "kernel", "sim": "elu"},
        "position": "none",
        "d_model": 12,
    },
    "square": {"kind": "decoder", "attention": {"name": "kernel", "sim": "square"}, "position": "none"},
    "deberta": {"kind": "encoder", "position": {"name": "disentangled", "span": 8, "max_distance": 20}},
    "c2p": {
        "kind": "encoder",
        "position": {"name": "disentangled", "span": 3, "max_distance": None, "terms": "c2p"},
    },
    "yarn": {
        "kind": "decoder",
        "position": {"name": "rope", "scaling": "yarn", "factor": 4.0, "original_len": 16},
        "block": "parallel",
        "norm_first": True,
        "residual_scale": 0.5,
    },
    "softcap": {"kind": "decoder", "attention": {"name": "softmax", "softcap": 2.0}, "position": "t5"},
    "lstm": {"kind": "decoder", "block": "lstm"},
    # a decoder that continues from the source, and maps of the states
    "lstm translator": {"block": {"name": "lstm", "units": 20}},
    "gru": {"kind": "encoder", "block": "gru", "norm_first": True},
    "rnn": {"kind": "decoder", "block": "rnn"},
    "gated_conv": {"kind": "decoder", "block": "gated_conv", "norm_first": True},
    "experts": {"kind": "decoder", "feed_forward": "moe", "position": "alibi"},
    "replaced": {"kind": "encoder", "generator_layers": 1, "d_embedding": 16},
    "short sentences": {"kind": "encoder", "lm_head": False, "pooling": "mean", "position": "learned"},
    "short mapped sentences": {
        "kind": "encoder",
        "lm_head": False,
        "pooling": {"name": "max", "activation": "none"},
        "dense": [{"width": 8, "activation": "tanh"}],
    },
}
LONG_TEXT = f"{TEXT} {TEXT}"  # a cache rounds groups of more than two tokens
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
FUNCTIONS = {"exp": math.exp, "ln": math.log, "min": min, "max": max, "abs": abs, "floor": math.floor}
FUNCTIONS |= {"sqrt": math.sqrt, "cos": math.cos, "sin": math.sin, "tanh": math.tanh, "ceil": math.ceil}
FUNCTIONS |= {"σ": lambda x: 1 / (1 + math.exp(-x))}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, dict[str, Any], Path]]:
    """The run, the document with the cases of levers and the page of a design."""
    place, made = tmp_path_factory.mktemp("formulas"), {}

    def make_one(design: str) -> tuple[Any, dict[str, Any], Path]:
        if design not in made:
            run = make_run(**DESIGNS[design])
            text = LONG_TEXT if design == "grouped" else TEXT
            document = explain(run, text, TARGET if run.kind == "encoder-decoder" else None)
            made[design] = run, document, save_page(place / f"{design}.html", render_walk_page(document))
        return made[design]

    return make_one


def compute_side(text: str) -> float | None:
    """The number that one side of a formula gives; None if it has letters, or only some of its terms."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("−", "-").replace("·10", "*10")
    text = re.sub(r"10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: f"10**({m[1].translate(SUPERSCRIPTS)})", text)
    text = re.sub(r"([\d.]+)\u2009([kMG]?)B?", lambda m: f"({m[1]}*{UNITS.get(m[2], 1)})", text)
    text = re.sub(r"√([\d.]+)", r"(\1**0.5)", text).replace("√(", "sqrt(").replace("×", "*")
    text = re.sub(r"\|([^|]+)\|", r"abs(\1)", text)
    text = text.replace("·", "*").replace("^", "**").replace("⌊", "floor(").replace("⌈", "ceil(")
    text = text.replace("⌋", ")").replace("⌉", ")")
    if "…" in text or set(re.findall(r"[^\W\d_]+", text)) - FUNCTIONS.keys():
        return None
    return float(eval(text, {"__builtins__": {}}, FUNCTIONS))


SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def check_numbers(shown: list[dict[str, Any]], near: float = 0.02, near_terms: float = 0) -> int:
    """Every number has words, a shape and a source; both sides of its formulas are equal, to their digits.

    ``near_terms`` is the share of the largest number of a formula that its sides may differ by: where large
    terms cancel.
    How many numbers have a formula that ends in them is returned.
    """
    n_complete = 0
    for one in shown:
        assert one["lines"] or one["words"], one
        assert {"shape", "line of source"} <= set(one["facts"]), one
        assert not re.search(r"NaN|undefined|null|Infinity", " ".join([one["title"], *one["lines"]])), one
        is_complete = False
        for line in one["lines"]:
            sides = [compute_side(side) for side in line.split(" = ")]
            known = [side for side in sides if side is not None]
            bound = max(
                1e-6, near_terms * max([float(x) for x in re.findall(r"\d+(?:\.\d+)?", line)], default=0)
            )
            assert all(side == pytest.approx(known[-1], rel=near, abs=bound) for side in known), (line, one)
            is_value = bool(known) and known[-1] == pytest.approx(read_value(one), rel=1e-2, abs=1e-6)
            is_complete |= len(known) > 1 and is_value
        n_complete += is_complete
    return n_complete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("design", "lever"),
    [*product(("beams", "samples"), LEVERS), ("grouped", "cache"), ("grouped", "kv_heads")],
)
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
        shown = page.evaluate(READ_NUMBERS, "#card-lever")
        assert check_numbers(shown) > 2, case
        of_cache = [one for one in shown if re.match("bytes|cache per token", one["title"])]
        assert len(of_cache) == 2 * (lever in ("cache", "kv_heads"))
        assert check_numbers(of_cache) == len(of_cache), of_cache


@pytest.mark.slow
@pytest.mark.parametrize("design", ["beams", "samples", "classes", "replaced"])
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
@pytest.mark.parametrize("design", ["experts", "plain experts"])
def test_the_probabilities_of_experts_are_those_of_the_router(
    design: str, make: Callable[..., Any], open_page: Open
) -> None:
    run, document, path = make(design)
    step = next(one for one in document["walk"] if one["kind"] == "moe")
    moe, options = run.model.stack.layers[0].ffn, DESIGNS[design]["feed_forward"]
    n, k = options["n_experts"], options["top_k"]
    page = open_walk(open_page, path)
    find_station(page, step["path"])
    x = read_array(page, step["in"])
    p = (x @ moe.router.weight.detach().double().T).softmax(-1)
    biased = p if moe.balance is None else p + moe.balance.detach().double()
    for token in range(len(x)):
        page.evaluate("token => explain.go({ tokens: [token] })", token)
        shown = page.evaluate(READ_NUMBERS, "#card-experts")
        # each probability; each weight of several, or of one, which is its probability
        assert check_numbers(shown) == n + k * options.get("normalize", True)
        best = biased[token].topk(k).indices.sort().values
        total = p[token, best].sum() if options.get("normalize", True) else 1
        for name, expected in (
            ("Logit", p[token].log() + (x[token] @ moe.router.weight.detach().double().T).logsumexp(-1)),
            ("Probability", p[token]),
            ("Weight", p[token, best] / total),
        ):
            numbers = [float(one["value"]) for one in shown if one["title"].startswith(name)]
            assert numbers == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6), name
        for expert, one in enumerate(one for one in shown if one["title"].startswith("Probability")):
            sums = [line for line in one["lines"] if line.startswith("p + b")]
            assert len(sums) == (moe.balance is not None)
            assert all(
                compute_side(s.split(" = ")[-1]) == pytest.approx(float(biased[token, expert]), rel=1e-3)
                for s in sums
            )


@pytest.mark.slow
def test_the_probability_of_a_replaced_token_is_the_logistic_function_of_its_logit(
    make: Callable[..., Any], open_page: Open
) -> None:
    run, document, path = make("replaced")
    ids = torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]])
    with torch.no_grad():
        logits = run.model(ids)[0].double()
    page = open_walk(open_page, path)
    find_station(page, "output")
    shown = page.evaluate(READ_NUMBERS, "#card-probabilities")
    assert check_numbers(shown) == len(logits)
    values = [float(one["value"]) for one in shown]
    assert values[::2] == pytest.approx(logits.tolist(), abs=1e-5)
    assert values[1::2] == pytest.approx((1 / (1 + (-logits).exp())).tolist(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [4, 6])
def test_the_slopes_of_alibi_and_their_biases_follow_from_their_formulas(
    heads: int, open_page: Open, tmp_path: Path
) -> None:
    """Slopes as in the code of the paper: of a number of heads that is no power of two from 4 and 8 heads."""
    document = explain(
        make_run(kind="encoder", position="alibi", n_heads=heads, d_model=24), TEXT, has_lever_cases=False
    )
    expected = {4: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]}
    expected[6] = [*expected[4], 2.0**-1, 2.0**-3]
    page = open_walk(open_page, save_page(tmp_path / "page.html", render_walk_page(document)))
    find_station(page, "position-0")
    slopes = page.evaluate(READ_NUMBERS, "#card-position")
    assert check_numbers(slopes) == heads
    assert [float(one["value"]) for one in slopes] == pytest.approx(expected[heads])
    find_station(page, next(s["path"] for s in document["walk"] if s["kind"] == "attention"))
    n = len(document["sides"][0]["tokens"])
    for head in (0, heads - 1):
        page.evaluate("head => explain.go({ head, tokens: [2] })", head)
        page.locator("#card-scores .heat").focus()
        page.keyboard.press("Home")
        for key in range(n):
            lines = page.locator("#inspector .formula").all_inner_texts()
            _, *sides = next(line for line in lines if line.startswith("b = ")).split(" = ")
            bias = -expected[heads][head] * abs(2 - key)
            assert [compute_side(side) for side in sides[1:]] == pytest.approx([bias] * 2, rel=1e-3)
            page.keyboard.press("ArrowRight")


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_the_errors_of_a_rounding_cache_are_those_of_keys_rounded_here(
    bits: int, make: Callable[..., Any], open_page: Open
) -> None:
    """Groups of channels between their extremes (Liu et al., 2024, sec. 3.2), of the first layer."""
    _, document, path = make("grouped")
    (lever,) = [one for one in document["levers"]["levers"] if one["name"] == "cache"]
    at, group = next(
        (i, one["setting"]["cache"]["group"])
        for i, one in enumerate(lever["cases"])
        if one["setting"]["cache"].get("bits") == bits
    )
    page = open_walk(open_page, path)
    k = read_array(page, next(s for s in document["walk"] if s["kind"] == "attention")["values"]["k"])
    find_station(page, "levers")
    page.evaluate("leverCase => explain.go({ lever: 'cache', leverCase })", at)
    page.evaluate("document.querySelectorAll('details.numbers').forEach((one) => { one.open = true; })")
    shown = page.evaluate(READ_NUMBERS, "#card-lever")
    n = k.size(1) // group * group
    assert group > 2
    groups = k[:, :n].unflatten(1, (-1, group))
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    errors = ((((groups - low) / scale).round() * scale + low).flatten(1, 2) - k[:, :n]).norm(dim=-1)
    errors = errors / k[:, :n].norm(dim=-1)
    found = [one for one in shown if one["title"].startswith("Error of K")][:n]
    assert [float(one["value"]) for one in found] == pytest.approx(
        errors.mean(0).tolist(), rel=1e-3, abs=1e-6
    )
    for position, one in enumerate(found):
        terms = one["lines"][1].split(" = ")[0].removeprefix("(").split(") /")[0].split(" + ")
        expected = errors[:, position].tolist()
        assert [compute_side(term) for term in terms] == pytest.approx(expected, rel=1e-2, abs=1e-6)


def read_array(page: Any, name: str) -> torch.Tensor:
    """An array as the page has it."""
    shape, numbers = page.evaluate(
        "name => { const { shape, data } = explain.value(name); return [shape, [...data]]; }", name
    )
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


@pytest.mark.slow
@pytest.mark.parametrize("design", DRAWN_DESIGNS)
def test_the_numbers_of_every_drawing_follow_from_their_formulas(
    design: str, open_page: Open, tmp_path: Path
) -> None:
    run, text = make_run(**DRAWN_DESIGNS[design]), "a" if design.startswith("short") else TEXT
    document = explain(run, text, TARGET if run.kind == "encoder-decoder" else None, has_lever_cases=False)
    check_drawings(open_walk(open_page, save_page(tmp_path / "page.html", render_walk_page(document))), 2)


@pytest.mark.slow
@pytest.mark.parametrize("design", ["lstm translator", "gru", "experts", "deberta"])
def test_the_numbers_of_a_window_of_a_long_text_follow_from_their_formulas(
    design: str, open_page: Open, tmp_path: Path
) -> None:
    run = make_run(**DRAWN_DESIGNS[design])
    target = f"{TARGET} {TARGET}" if run.kind == "encoder-decoder" else None
    document = explain(run, f"{TEXT} {TEXT}", target, first=4, n_shown=12, has_lever_cases=False)
    page = open_walk(open_page, save_page(tmp_path / "page.html", render_walk_page(document)))
    for token in (4, 15):
        check_drawings(page, token)


def check_drawings(page: Any, token: int) -> None:
    """The numbers at all stations, with the same token chosen on every side."""
    token = min(token, *page.evaluate("explain.page.data.sides.map(({ tokens }) => tokens.length - 1)"))
    for station in page.evaluate("explain.page.stations.map(({ id }) => id)"):
        find_station(page, station)
        page.evaluate("token => explain.go({ tokens: explain.state.tokens.map(() => token) })", token)
        for one in page.evaluate(READ_DRAWINGS) + page.evaluate(READ_NUMBERS, "#stage"):
            check_numbers([one], near_terms=1e-3)
            results = [compute_side(line.split(" = ")[-1]) for line in one["lines"] if " = " in line]
            results = [result for result in results if result is not None]
            value = pytest.approx(read_value(one), rel=1e-2, abs=1e-6)
            is_hidden = one["value"] == "−∞"
            assert is_hidden or not results or any(result == value for result in results), one


def read_value(shown: dict[str, Any]) -> float:
    """The number that the inspector shows."""
    return float(shown["value"].replace("−", "-").replace("∞", "inf"))


@pytest.mark.slow
def test_a_number_that_is_drawn_again_has_the_formula_of_where_it_was_computed(
    open_page: Open, tmp_path: Path
) -> None:
    document = explain(make_run(kind="decoder", norm_first=True), TEXT, has_lever_cases=False)
    page = open_walk(open_page, save_page(tmp_path / "page.html", render_walk_page(document)))
    shown: dict[str, Any] = {}
    for station in ("stack.final_norm", "output", "stack.layers.1.ffn"):
        find_station(page, station)
        page.evaluate("explain.go({ tokens: [3] })")
        shown |= {
            (station, one["drawing"], one["title"].split(",")[0]): one
            for one in page.evaluate(READ_DRAWINGS)
            if one["title"].endswith("feature 32")
        }
    normed, last = (
        shown["stack.final_norm", "norm", "after"],
        shown["output", "last-vector", "The last vector"],
    )
    assert last["value"] == normed["value"]
    assert last["lines"] == normed["lines"]
    assert last["words"] == 1  # the station where it was computed
    came, before = (
        shown["stack.final_norm", "norm", "before"],
        shown["stack.layers.1.ffn", "residual", "runs on"],
    )
    assert (came["value"], came["lines"], came["words"]) == (before["value"], before["lines"], 1)


@pytest.mark.slow
@pytest.mark.parametrize("design", ["beams", "experts", "replaced"])
def test_a_drawing_of_one_vector_shows_the_numbers_of_the_chosen_token(
    design: str, make: Callable[..., Any], open_page: Open
) -> None:
    _, document, path = make(design)
    page = open_walk(open_page, path)
    n_vectors = 0
    for station in page.evaluate("explain.page.stations.map(({ id }) => id)"):
        find_station(page, station)
        page.evaluate("explain.go({ tokens: explain.state.tokens.map(() => 2) })")
        step = next((one for one in document["walk"] if one["path"] == station), None)
        vectors = {"ffn-out", "part-out", f"{station}-out"}
        for one in page.evaluate(READ_DRAWINGS):
            if one["drawing"] in vectors and one["title"].endswith("feature 1"):
                assert float(one["value"]) == read_array(page, step["out"])[2, 0], one
                n_vectors += 1
            elif one["drawing"] == "last-vector" and one["title"].endswith("feature 1"):
                head = next(one for one in document["walk"] if one["kind"] == "head")
                assert float(one["value"]) == read_array(page, head["in"])[2, 0], one
                n_vectors += 1
    assert n_vectors > 2


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
