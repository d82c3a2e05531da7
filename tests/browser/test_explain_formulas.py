"""The formulas of numbers on the page of ``explain``: with numbers substituted they give what is shown."""

import json
import re
from collections import defaultdict
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from tests.browser import explain_pages as pages
from tests.browser.conftest import PHONE, check_accessibility, wait_until
from tests.explain.explain_helpers import TARGET, TEXT, make_run

from polyhead.explain.document import explain
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

LONG_TEXT = f"{TEXT} {TEXT}"  # a cache quantizes groups of more than two tokens
# decoders with linear attention and encoders of short sentences have so few tokens that their sums have all
# their terms, elu has heads of 3 features for this, and the lstm translator continues from the source
CONFIGS = json.loads((Path(__file__).parent / "explain_designs.json").read_text())
DESIGNS = CONFIGS["designs"]
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def explain_design():
    """The run and the document with the cases of levers of a design."""
    results = {}

    def explain_one(design):
        if design not in results:
            run = make_run(**DESIGNS[design])
            text = LONG_TEXT if design == "grouped" else TEXT
            results[design] = run, explain(run, text, TARGET if run.kind == "encoder-decoder" else None)
        return results[design]

    return explain_one


@pytest.fixture
def open_explained(explain_design, open_page, tmp_path):
    """The run, the document and the page of a design."""

    def open_one(design):
        run, document = explain_design(design)
        return run, document, pages.open_document(open_page, document, tmp_path / "page.html")

    return open_one


@pytest.fixture
def open_walk_of(open_page, tmp_path):
    """The document without cases of levers, and the page, of a config."""

    def open_one(config, text=TEXT, target=None, **options):
        document = explain(make_run(**config), text, target, has_lever_cases=False, **options)
        return document, pages.open_document(open_page, document, tmp_path / "page.html")

    return open_one


def go_to_case(page, lever, case):
    pages.go_to_station(page, "levers")
    page.evaluate("([lever, leverCase]) => explain.go({ lever, leverCase })", [lever, case])
    page.evaluate("document.querySelectorAll('details.numbers').forEach((one) => { one.open = true; })")
    # their tables are built by events after that
    wait_until(page, "[...document.querySelectorAll('details.numbers')].every((one) => one.children[1])")


@slow
@pytest.mark.parametrize(
    ("design", "lever"),
    [*product(("beams", "samples"), LEVERS), ("grouped", "cache"), ("grouped", "kv_heads")],
)
def test_numbers_of_lever_follow_from_formulas(design, lever, open_explained):
    _, document, page = open_explained(design)
    part = pages.find_lever(document, lever)
    if part["reason"]:
        pytest.skip(f"not applicable: {part['reason']['en']}")
    for case in range(min(len(part["cases"]), 9)):
        go_to_case(page, lever, case)
        numbers = pages.read_numbers(page, "#card-lever")
        assert pages.check_numbers(numbers) > 2, case
        cache_numbers = [one for one in numbers if re.match("bytes|cache per token", one["title"])]
        assert len(cache_numbers) == 2 * (lever in ("cache", "kv_heads"))
        assert pages.check_numbers(cache_numbers) == len(cache_numbers), cache_numbers


@pytest.mark.parametrize(
    "design", ["classes", *(pytest.param(x, marks=slow) for x in ("beams", "samples", "replaced"))]
)
def test_numbers_of_output_and_cost_follow_from_formulas(design, open_explained):
    _, document, page = open_explained(design)
    pages.go_to_station(page, "output")
    assert pages.check_numbers(pages.read_numbers(page, "#card-probabilities")) > 2
    pages.go_to_station(page, "cost")
    assert pages.check_numbers(pages.read_numbers(page, "#stage")) > 8
    for step in range(len(document["generation"]["steps"]) if document["generation"] else 0):
        page.evaluate("step => explain.go({ station: 'generation', step })", step)
        assert pages.check_numbers(pages.read_numbers(page, "#stage")) > 10


@slow
@pytest.mark.parametrize("design", ["experts", "plain experts"])
def test_expert_probabilities_match_router(design, open_explained):
    run, document, page = open_explained(design)
    step, moe = pages.find_step(document, "moe"), run.model.stack.layers[0].ffn
    options = DESIGNS[design]["feed_forward"]
    n, k, is_normalized = options["n_experts"], options["top_k"], options.get("normalize", True)
    pages.go_to_station(page, step["path"])
    logits = pages.read_array(page, step["in"]) @ moe.router.weight.detach().double().T
    p = logits.softmax(-1)
    router_scores = p if moe.balance is None else p + moe.balance.detach().double()
    for token in range(len(p)):
        page.evaluate("token => explain.go({ tokens: [token] })", token)
        numbers = pages.read_numbers(page, "#card-experts")
        assert pages.check_numbers(numbers) == n + k  # probabilities and weights
        best = router_scores[token].topk(k).indices.sort().values
        weights = p[token, best] / (p[token, best].sum() if is_normalized else 1)
        for title, expected in (("Logit", logits[token]), ("Probability", p[token]), ("Weight", weights)):
            values = pages.select_values(numbers, title)
            assert values == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6), title
        probabilities = [one for one in numbers if one["title"].startswith("Probability")]
        for expert, one in enumerate(probabilities):
            sums = [line for line in one["lines"] if line.startswith("p + b")]
            assert len(sums) == (moe.balance is not None)
            for line in sums:
                value = pages.evaluate_formula(line.split(" = ")[-1])
                assert value == pytest.approx(float(router_scores[token, expert]), rel=1e-3)


@pytest.mark.parametrize("heads", [4, pytest.param(6, marks=slow)])
def test_alibi_slopes_and_biases_follow_from_formulas(heads, open_walk_of):
    """Slopes as in the code of the paper: of 6 heads from those of 4 and 8 heads."""
    config = {"kind": "encoder", "position": "alibi", "n_heads": heads, "d_model": 24}
    document, page = open_walk_of(config)
    expected = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3][:heads]
    pages.go_to_station(page, "position-0")
    slopes = pages.read_numbers(page, "#card-position")
    assert pages.check_numbers(slopes) == heads
    assert pages.select_values(slopes, "") == pytest.approx(expected)
    pages.go_to_station(page, pages.find_step(document, "attention")["path"])
    for head in (0, heads - 1):
        page.evaluate("head => explain.go({ head, tokens: [2] })", head)
        page.locator("#card-scores .heat").focus()
        page.keyboard.press("Home")
        for key in range(len(document["sides"][0]["tokens"])):
            lines = page.locator("#inspector .formula").all_inner_texts()
            _, *sides = next(line for line in lines if line.startswith("b = ")).split(" = ")
            bias = -expected[head] * abs(2 - key)
            assert [pages.evaluate_formula(side) for side in sides[1:]] == pytest.approx([bias] * 2, rel=1e-3)
            page.keyboard.press("ArrowRight")


TABLE = re.compile(r"(\w+)\[(\d+), (\d+)\] = ([^ ]+)")  # E[413, 72] = 0.0545
TENSOR = re.compile(r"(\w+) = ([\w.]+)")  # W = stack.layers.0.attn.v_proj.weight
MAP = re.compile(r"\w = x · W\[(\d+)\](?! \+ h)")  # V = x · W[13] + b[13], but no gate that reads a state too


def read_vectors(page, document):
    """All vectors of tokens and of texts that the page has, by their width."""
    vectors = defaultdict(list)
    for name in {step[end] for step in document["walk"] for end in ("in", "out") if step[end]}:
        array = pages.read_array(page, name)
        vectors[array.size(-1)].append(array.reshape(-1, array.size(-1)))
    return {width: torch.cat(arrays) for width, arrays in vectors.items()}


def check_against_file(numbers, model, vectors):
    """Numbers follow from the tensors that they name, with the printed indices. Returns how many do."""
    weights = {name: p.detach().double() for name, p in model.named_parameters()}
    n_read = 0
    for one in numbers:
        names = dict(TENSOR.findall(" ".join(one["soft"])))
        for line in one["lines"]:
            if (cell := TABLE.match(line)) and cell[1] in names:
                value = float(weights[names[cell[1]]][int(cell[2]), int(cell[3])])
                assert pages.evaluate_formula(cell[4]) == pytest.approx(value, rel=1e-3), one
                n_read += 1
            if (row := MAP.match(line)) and one["value"] not in ("0", "−∞"):
                weight, bias = weights[names["W"]][int(row[1])].flatten(), names.get("b")
                sums = vectors[len(weight)] @ weight + (weights[bias][int(row[1])] if bias else 0)
                assert ("+ b[" in line) == (bias is not None), one
                results = [pages.evaluate_formula(other.split(" = ")[-1]) for other in one["lines"]]
                bound = 2e-4 * float(sums.abs().max())
                gaps = [float((sums - x).abs().min()) - 5e-4 * abs(x) for x in results if x is not None]
                assert min(gaps) < bound, one  # but for rounding to four digits
                n_read += 1
    return n_read


def check_drawings(page, token):
    """The numbers of all stations, with the same token selected on every side; no drawing is without one."""
    token = min(token, *page.evaluate("explain.page.data.sides.map(({ tokens }) => tokens.length - 1)"))
    numbers = []
    for station in pages.list_stations(page):
        page.evaluate(
            "([station, token]) => "
            "explain.go({ station, key: null, tokens: explain.state.tokens.map(() => token) })",
            [station, token],
        )
        here = pages.read_drawings(page) + pages.read_numbers(page, "#stage")
        pages.check_numbers(here)
        numbers += here if station not in ("generation", "levers") else []  # of vectors that are not shown
        assert pages.find_dead_drawings(page) == []
    return numbers


@pytest.mark.parametrize(
    "design",
    [x if x in ("rope", "gru") else pytest.param(x, marks=slow) for x in CONFIGS["drawn"]],
)
def test_numbers_of_drawings_follow_from_formulas(design, open_walk_of):
    config, text = CONFIGS["drawn"][design], "a" if design.startswith("short") else TEXT
    document, page = open_walk_of(config, text, None if "kind" in config else TARGET)
    numbers = check_drawings(page, 2)
    n_read = check_against_file(numbers, make_run(**config).model, read_vectors(page, document))
    assert n_read > 2


@slow
@pytest.mark.parametrize("design", ["lstm translator", "gru", "experts", "deberta"])
def test_numbers_of_window_follow_from_formulas(design, open_walk_of):
    config = CONFIGS["drawn"][design]
    target = None if "kind" in config else f"{TARGET} {TARGET}"
    _, page = open_walk_of(config, LONG_TEXT, target, first=4, n_shown=12)
    for token in (4, 15):
        check_drawings(page, token)


def test_repeated_number_keeps_its_formula(open_walk_of):
    """A number that is drawn again has the formula of the station where it was computed."""
    _, page = open_walk_of({"kind": "decoder", "norm_first": True})
    numbers = {}
    for station in ("stack.final_norm", "output", "stack.layers.1.ffn"):
        pages.go_to_station(page, station)
        page.evaluate("explain.go({ tokens: [3] })")
        for one in pages.read_drawings(page):
            if one["title"].endswith("feature 31"):
                numbers[station, one["drawing"], one["title"].split(",")[0]] = one
    for first, repeat in (
        (("stack.final_norm", "norm", "after"), ("output", "last-vector", "The last vector")),
        (("stack.layers.1.ffn", "residual", "output"), ("stack.final_norm", "norm", "before")),
    ):
        assert numbers[repeat]["value"] == numbers[first]["value"]
        assert numbers[repeat]["lines"] == numbers[first]["lines"]
        assert numbers[repeat]["words"] == 1  # the station where it was computed


@slow
@pytest.mark.parametrize("design", ["beams", "experts", "replaced"])
def test_vector_drawings_show_selected_token(design, open_explained):
    _, document, page = open_explained(design)
    n_vectors = 0
    for station in pages.list_stations(page):
        pages.go_to_station(page, station)
        page.evaluate("explain.go({ tokens: explain.state.tokens.map(() => 2) })")
        step = next((one for one in document["walk"] if one["path"] == station), None)
        for one in pages.read_drawings(page):
            if one["title"].endswith("feature 0"):
                if one["drawing"] in ("ffn-out", "part-out", f"{station}-out"):
                    name = step["out"]
                elif one["drawing"] == "last-vector":
                    name = pages.find_step(document, "head")["in"]
                else:
                    continue
                assert pages.parse_value(one) == pages.read_array(page, name)[2, 0], one
                n_vectors += 1
    assert n_vectors > 2


@slow
@pytest.mark.parametrize("policy", ["window", "h2o"])
def test_arrow_keys_read_number_of_visible_keys(policy, open_explained):
    _, document, page = open_explained("samples")
    cases = pages.find_lever(document, "cache")["cases"]
    case = next(i for i, one in enumerate(cases) if one["setting"]["cache"]["name"] == policy)
    go_to_case(page, "cache", case)
    page.locator("[data-focus='kept-1']").focus()
    page.keyboard.press("ArrowUp")
    marks = cases[case]["detail"]["visible"][0][-2]
    (n_visible,) = pages.read_data_values(page.locator("#inspector output"))
    assert n_visible == sum(mark != "0" for mark in marks) < len(marks)


@slow
def test_arrow_keys_move_in_curves_and_tables(open_explained):
    _, document, page = open_explained("samples")
    detail = pages.find_lever(document, "prefill")["cases"][0]["detail"]
    go_to_case(page, "prefill", 0)
    page.locator("[data-focus='step-flops']").focus()
    steps = ("Home", "step_flops", 0), ("ArrowRight", "step_flops", 1), ("ArrowDown", "recompute_flops", 1)
    for key, name, n in steps:
        page.keyboard.press(key)
        assert pages.read_data_values(page.locator("#inspector output")) == [detail[name][n]]
    _, _, page = open_explained("samples")
    pages.go_to_station(page, "cost")
    stops = page.locator("#card-cost table .pointable[tabindex='0']")
    assert stops.count() == 1
    stops.focus()
    first, second = page.locator("#card-cost tbody th").all_inner_texts()[:2]
    for key, title in (  # neither has operations, and the second has no weights
        ("ArrowRight", f"{first}: activations"),
        ("ArrowDown", f"{second}: activations"),
        ("ArrowUp", f"{first}: weights"),
        ("ArrowRight", f"{first}: activations"),
    ):
        page.keyboard.press(key)
        assert page.locator("#inspector h2").inner_text() == title


@slow
@pytest.mark.parametrize(
    ("kind", "position"),
    [
        ("encoder", {"name": "t5", "buckets": 8, "max_distance": 9}),
        ("decoder", {"name": "t5", "buckets": 8, "max_distance": 9}),
        ("encoder", {"name": "shaw", "clip": 3}),
    ],
    ids=str,
)
def test_score_shows_its_row_of_position_table(kind, position, open_walk_of):
    """Rows of T5 as in transformers, of Shaw by clipping (Shaw et al., 2018, section 3.2)."""
    document, page = open_walk_of({"kind": kind, "position": position})
    step = pages.find_step(document, "attention")
    n = len(document["sides"][0]["tokens"])
    distance = torch.arange(n) - torch.arange(n)[:, None]
    if position["name"] == "t5":
        t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
        rows = t5._relative_position_bucket(distance, kind == "encoder", 8, 9)
    else:
        rows = distance.clamp(-3, 3) + 3
    pages.go_to_station(page, step["path"])
    page.evaluate("explain.go({ head: 1 })")
    page.locator("#card-scores .heat").focus()
    page.keyboard.press("Home")
    for _ in range(n):
        page.keyboard.press("ArrowUp")
    bias = pages.read_array(page, step["values"]["bias"])[1]
    for query in range(n):
        for key in range(n):
            lines = page.locator("#inspector .formula").all_inner_texts()
            if key <= query or kind == "encoder":
                row = int(rows[query, key])
                rule, formula = next((a, b) for a, b in pairwise(lines) if b.startswith("b = "))
                assert f"[{row}" in formula, lines
                first, *_, last = (
                    pages.evaluate_formula(side) for side in rule.replace("±3", "").split(" = ")
                )
                assert last == row and first in (None, row), lines
                value = pages.evaluate_formula(formula.split(" = ")[-1])
                assert value == pytest.approx(float(bias[query, key]), rel=1e-3)
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
    pages.go_to_station(page, "position-0")
    check_accessibility(page)


def find_cell(page, drawing, row, column):
    """The middle of a visible cell of a matrix in which each query sees the keys before it, or of a strip."""
    # between the row of tokens and the sheet of the number
    page.locator(drawing).evaluate("one => scrollBy(0, one.getBoundingClientRect().top - 120)")
    strips = page.locator(f"{drawing} image")
    if strips.count():
        n = page.evaluate("name => explain.value(name).shape.at(-1)", "stack.layers.0.attn.q")
        box = strips.nth(row).bounding_box()
        return box["x"] + box["width"] * (column + 0.5) / n, box["y"] + box["height"] / 2
    box = page.locator(f"{drawing} .cell").nth(row * (row + 1) // 2 + column).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("gesture", ["tap", pytest.param("click", marks=slow), "Enter"])
def test_chosen_cell_keeps_its_formula(gesture, open_page, tmp_path):
    document = explain(make_run(kind="decoder"), TEXT, has_lever_cases=False)
    path, options = save_page(tmp_path / "page.html", render_walk_page(document)), {}
    if gesture == "tap":
        options = {"screen": PHONE, "has_touch": True}
    page = pages.open_walk(open_page, path, **options)
    pages.go_to_station(page, "stack.layers.0.attn")
    names, rows, columns = page.evaluate(
        "[(i) => tokenText(0, i), (i) => rowName(0, i), (i) => cellName(sideOf(0).tokens[i].text)]"
        ".map((name) => sideOf(0).tokens.map((_, i) => name(i)))"
    )
    titles = {
        "scores": "Score of “{row}” for “{k}”, head 0",
        "weights": "Weight of “{k}” for “{row}”, head 0",
        "vector-Q": "Q of “{q}”, head 0, feature {c}",
    }
    for (drawing, title), (q, k) in zip(titles.items(), ((4, 2), (5, 3), (3, 1)), strict=True):
        element = f"[data-focus='{drawing}']"
        if gesture == "Enter":
            page.locator(element).focus()
            page.keyboard.press("Home")
            for key in ["ArrowUp"] * len(names) + ["ArrowDown"] * q + ["ArrowRight"] * k:
                page.keyboard.press(key)
            page.keyboard.press("Enter")
        else:
            x, y = find_cell(page, element, q, k)
            page.touchscreen.tap(x, y) if gesture == "tap" else page.mouse.click(x, y)
        assert page.evaluate("explain.state.tokens") == [q]
        title = title.format(q=names[q], row=rows[q], k=columns[k], c=k)
        assert page.locator("#inspector h2").inner_text() == title
        assert page.locator("#inspector .formula").count() > 0
        assert page.locator("#inspector .formula").first.is_visible()
    button = page.locator("[data-focus='key-1']")
    button.focus() if gesture == "Enter" else None
    {"tap": button.tap, "click": button.click, "Enter": lambda: page.keyboard.press("Enter")}[gesture]()
    assert page.evaluate("explain.state.key") == 1
    assert page.locator("#inspector h2").inner_text() == f"Weight of “{columns[1]}” for “{rows[3]}”, head 0"
    page.locator("#inspector .close").click()
    assert page.locator("#inspector .formula").count() == 0
